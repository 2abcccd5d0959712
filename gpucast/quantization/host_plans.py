# SPDX-License-Identifier: Apache-2.0
"""Plans of the functions that quantize on the host: a call like an earlier one is one of the module, or a few.

They serve the formats that `quantize_on_host.quantizing` describes. An earlier result of the checked path says how
results look.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.overlap import share_memory
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import plans
from gpucast.casting.list_plans import HOST_KINDS
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.quantization import hadamard_on_host, quantize_on_host, swizzle
from gpucast.quantization.call_choices import choices, signs_of
from gpucast.quantization.cuda_plans import is_record
from gpucast.quantization.formats import Format, Hadamard
from gpucast.quantization.option_checks import resolve_hadamard

#: How a new array looks, for ``MODULE.new_part``: the dtype and shape of NumPy's, those of packed bytes with the class
#: of a PackedArray and its other attributes, or a function that gives it; None for no array.
Made = Any
#: The most shapes of a plan, and the most kinds of results of a shape.
_MOST, _MOST_KINDS = 256, 8
_FLOAT = dtype("FLOAT")
#: A FLOAT holds each magnitude below as DOUBLE rounds it once.
_WHOLE = 1 << 53


class _Result(NamedTuple):
    """How the arrays of one shape are quantized."""

    #: For the module: after a transform, if there is one.
    how: bytes
    transform: bytes | None
    #: Whether x is transposed first.
    turned: bool
    #: The class of results, `gpucast.Quantized`.
    quantized: Any
    format: Format
    #: The axis, and the shape of the codes as their class has it.
    axis: int
    shape: tuple[int, ...]
    kind: Any
    layout: Any
    #: Each part. Scales are in the layout "linear".
    makes: tuple[Made, ...]

    def entry(self, src: DType, library: str | None, asked: Any) -> tuple[Any, ...]:
        """The same for the module, of x as it is."""
        attributes = {
            "format": self.format, "dtype": src, "axis": self.axis, "scale_layout": self.layout, "library": library,
        }  # fmt: skip
        is_packed = issubclass(self.kind, PackedArray)
        codes = self.kind, is_packed, self.shape
        return self.how, asked, self.quantized, attributes, *codes, self.makes, object, None, None, None

    def is_like(self, q: Any) -> bool:
        """Whether an earlier result is one of these. (The module looks at its memory.)"""
        return (
            type(q) is self.quantized
            and q.format is self.format
            and q.axis == self.axis
            and q.scale_layout == self.layout
            and type(q.data) is self.kind
            and q.data.shape == self.shape
        )


class _QuantizePlan:
    """What calls keep that differ in the shapes of their arrays, and in their signs, alone."""

    def __init__(self, src: DType, library: str | None, kind: type, rounding: Any, hadamard: Any) -> None:
        self.src, self.library, self.is_tensor = src, library, kind is not np.ndarray
        self.asked, self.rounding, self.choose = HOST_KINDS[kind].library, rounding, choices(hadamard)
        #: One result, or a plain and a transposed one.
        self.results: dict[Any, tuple[_Result, ...]] = {}
        #: By shape those for the module, of calls that choose nothing else.
        self.entries: dict[Any, list[tuple[Any, ...]]] = {}
        self.plan = plans.make("quantized", self.run, kernels=self.entries)

    def run(self, x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Any:
        choice = self.choose(self.rounding, seed, offset, signs)
        if choice is None:
            return None
        random, own_signs = choice
        try:
            known = self.results.get((x.shape, own_signs))
        except RuntimeError:
            # A nested tensor has no shape; the checked path refuses it by name.
            return None
        if known is None:
            return None
        given, top = _number(scale), _number(amax)
        if (given is None) != (scale is None) or (top is None) != (amax is None) or not (scale is None or amax is None):
            return None
        outs = None if out is None else (out,) if len(known) == 1 else out
        if outs is not None and not self._takes(x, outs, known):
            return None
        results: list[list[Any]] = []
        for i, one in enumerate(known):
            target = None if outs is None else outs[i]
            if target is None:
                parts: list[Any] = [MODULE.new_part(make) for make in one.makes]
            else:
                scales = target.scales if one.layout == "linear" else MODULE.new_part(one.makes[1])
                parts = [target.data, scales, target.zero_points, target.global_scale]
            if i and one.format.global_scale and scale is amax is None and one.transform is known[0].transform is None:
                # The plain and the transposed result have the same global scale.
                given = float(results[0][3])
            if not self._fill(x, one, parts, given, top, random or (None, 0)):
                return None
            if one.layout != "linear":
                wanted = None if target is None else target.scales
                parts[1] = swizzle.swizzle(parts[1], layout=one.layout, out=wanted)
                if self.library is not None:
                    parts[1] = libraries.of_library(self.library).from_array(parts[1])
            results.append(parts)
        if outs is not None:
            return out
        made = [self._made(one, parts) for one, parts in zip(known, results, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    def _fill(
        self, x: Any, one: _Result, parts: list[Any], given: float | None, top: float | None, random: tuple[Any, int]
    ) -> bool:
        if one.turned:
            x = x.swapaxes(-1, -2)
            x = x.contiguous() if self.is_tensor else np.ascontiguousarray(x)
        if one.transform is not None:
            y = np.empty(x.shape, np.float32)
            if not MODULE.transform(one.transform, self.asked, x, y):
                return False
            x = y
        data = parts[0].data if isinstance(parts[0], PackedArray) else parts[0]
        return bool(MODULE.quantize(one.how, self.asked, x, data, *parts[1:], given, top, *random))

    def _takes(self, x: Any, outs: Any, known: tuple[_Result, ...]) -> bool:
        """Whether results can be written to these, as far as the module does not look."""
        if type(outs) is not tuple or len(outs) != len(known):
            return False
        for one, q in zip(known, outs, strict=True):
            if not one.is_like(q) or q.dtype is not self.src or q.library != self.library:
                return False
        first = known[0]
        if len(known) == 1 and not first.turned and first.transform is None and first.layout == "linear":
            return True
        # The module sees copies.
        if self.is_tensor:
            return False
        parts = [part for q in outs for part in q.parts().values()]
        arrays = [part.data if isinstance(part, PackedArray) else part for part in parts]
        return all(a.flags.c_contiguous and a.flags.writeable and not share_memory(a, x) for a in arrays) and not any(
            share_memory(a, b) for a, b in itertools.combinations(arrays, 2)
        )

    def _made(self, one: _Result, parts: Sequence[Any]) -> Any:
        q = object.__new__(one.quantized)
        # Past __init__, whose checks take longer than all else here.
        vars(q).update(
            data=parts[0], scales=parts[1], zero_points=parts[2], global_scale=parts[3], format=one.format,
            dtype=self.src, axis=one.axis, scale_layout=one.layout, library=self.library,
        )  # fmt: skip
        return q


def _number(given: Any) -> float | None:
    """A number that the module takes for a FLOAT; None for any other object."""
    if type(given) is float:
        return given
    if type(given) is int and -_WHOLE < given < _WHOLE:
        return float(given)
    if type(given) is np.ndarray and not given.ndim and given.dtype == np.float32:
        return float(given)
    return None


@lru_cache(maxsize=1024)
def _quantize_plan(src: DType, library: str | None, kind: Any, rounding: Any, hadamard: Any, *call: Any) -> Any:
    return _QuantizePlan(src, library, kind, rounding, hadamard)


def quantized(x: Any, asked: Any, keywords: tuple[Any, ...], result: Any) -> Any:
    """The plan of a call that gave a result, if there may be one."""
    axis, layout, transpose, rounding, seed, offset, _, _, hadamard, signs, moved_to, _ = keywords
    results = result if isinstance(result, (tuple, list)) else (result,)
    shape, library = tuple(x.shape), libraries.library_of(x)
    # Later results look like this one. One that the caller gave may be of another class or library.
    if moved_to is not None or type(x) not in HOST_KINDS or any(q.library != library for q in results):
        return None
    if not all(is_record(type(q)) and np.shape(q.global_scale) == () for q in results):
        return None
    choice = choices(hadamard)(rounding, seed, offset, signs)
    if choice is None:
        return None
    hows = hadamard if type(hadamard) is tuple else (hadamard,) * len(results)
    turned = (False, True) if len(results) == 2 else (bool(transpose),)
    # Another thread may have reshaped x, and a list that the caller gave is no result of later calls.
    if type(result) is list or any(
        _turned(shape, swaps) != tuple(q.shape) for q, swaps in zip(results, turned, strict=True)
    ):
        return None
    known = []
    for q, length, swaps in zip(results, hows, turned, strict=True):
        how = None if length is None else resolve_hadamard(length, signs, seed, "quantize: hadamard")
        one = _result(q, dtype(x.dtype), how, swaps, math.prod(shape))
        if one is None:
            return None
        known.append(one)
    kind: Any = type(x)
    plan = _quantize_plan(
        results[0].dtype, library, kind, rounding, hadamard, results[0].format, axis, layout, transpose
    )
    if len(plan.results) >= _MOST:
        plan.results.clear()
        plan.entries.clear()
    plan.results[shape, choice[1]] = tuple(known)
    if rounding is hadamard is None and transpose is False and layout == "linear":
        plan.entries[shape] = [known[0].entry(plan.src, library, plan.asked)]
    return plan.plan


def _turned(shape: tuple[int, ...], swaps: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swaps else shape


def _result(q: Any, src: DType, hadamard: Hadamard | None, turned: bool, size: int) -> _Result | None:
    shape = tuple(q.shape)
    if hadamard is not None and (q.axis != len(shape) - 1 or not size):
        return None
    how = quantize_on_host.quantizing(q.format, src if hadamard is None else _FLOAT, shape, q.axis)
    scales = q.scales
    if q.scale_layout != "linear":
        scales = np.empty(q.scales_shape, q.format.scale.numpy)
    parts = q.data, scales, q.zero_points, q.global_scale
    makes = tuple(make_of(part) for part in parts)
    if how is None or any((make is None) != (part is None) for make, part in zip(makes, parts, strict=True)):
        return None
    transform = None if hadamard is None else hadamard_on_host.transforming(hadamard, src, size)
    kind = type(q.data)
    return _Result(how, transform, turned, type(q), q.format, q.axis, q.data.shape, kind, q.scale_layout, makes)


def make_of(part: Any) -> Made:
    """How new arrays of the host like a part look; None for one that plans do not make."""
    if type(part) is np.ndarray:
        return part.dtype, part.shape, None, None
    if type(part) in (PackedArray, LibraryPackedArray) and type(part.data) is np.ndarray:
        attributes = {"dtype": part.dtype, "shape": part.shape}
        if type(part) is LibraryPackedArray:
            attributes["library"] = part.library
        return part.data.dtype, part.data.shape, None, None, type(part), attributes
    library = None if part is None else libraries.find(part)
    return None if library is None else library.like(part)


# ---- transforms alone ----


class _TransformPlan:
    """What calls keep that differ in the shapes of their arrays, and in their signs, alone."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.asked = kind, HOST_KINDS[kind].library
        #: With how a result is made, and its dtype.
        self.hows: dict[Any, tuple[bytes, Made, Any]] = {}
        self.plan = plans.make("", self.run)

    def run(self, x: Any, signs: Any, seed: Any, out: Any) -> Any:
        try:
            known = self.hows.get((x.shape, signs_of(signs, seed)))
        except RuntimeError:
            # As above.
            return None
        if known is None or not (out is None or type(out) is self.kind):
            return None
        how, make, kind = known
        y = MODULE.new_part(make) if out is None else out
        if y.shape != x.shape or y.dtype != kind or not MODULE.transform(how, self.asked, x, y):
            return None
        return y


@lru_cache(maxsize=256)
def _transform_plan(kind: Any, *call: Any) -> _TransformPlan:
    return _TransformPlan(kind)


def transformed(x: Any, length: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    """The plan of a transform along the last axis to FLOAT, if there may be one."""
    axis, signs, seed, inverse, to, _ = keywords
    known, kind = signs_of(signs, seed), type(x)
    # Of another class NumPy's functions may be its own ones.
    size = math.prod(x.shape) if kind in HOST_KINDS else 0
    if type(y) is not kind or known is None or not size:
        return None
    make = make_of(y)
    if axis % x.ndim != x.ndim - 1 or dtype(to) is not _FLOAT or make is None:
        return None
    how = resolve_hadamard(length, signs, seed, "hadamard: length")
    key: list[Any] = [kind, x.dtype, how.length, axis, inverse]
    plan = _transform_plan(*key)
    if len(plan.hows) >= _MOST:
        plan.hows.clear()
    plan.hows[y.shape, known] = hadamard_on_host.transforming(how, dtype(x.dtype), size, inverse), make, y.dtype
    return plan.plan


# ---- back ----


class _DequantizePlan:
    """What calls keep that differ in their `Quantized` alone."""

    def __init__(self) -> None:
        #: By the shape of the codes; the latest first.
        self.entries: dict[Any, list[tuple[Any, ...]]] = {}
        self.plan = plans.make("dequantized", kernels=self.entries)

    def add(self, entry: tuple[Any, ...]) -> None:
        if len(self.entries) >= _MOST:
            self.entries.clear()
        *_, shape, _, _, _, _, _ = entry
        alike = self.entries.get(shape, [])
        self.entries[shape] = [entry, *alike[: _MOST_KINDS - 1]]


@lru_cache(maxsize=64)
def _dequantize_plan(src: DType, to: DType) -> _DequantizePlan:
    return _DequantizePlan()


def dequantized(q: Any, to: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    """The plan of a call that gave `y`, if there may be one."""
    if not keywords[0] is keywords[1] is keywords[2] is None or type(y) not in HOST_KINDS:
        return None
    # Results of the plan look like `y`, which may be an `out` of another library.
    if libraries.library_of(y) != q.library:
        return None
    if q.scale_layout != "linear" or np.shape(q.global_scale) != () or not is_record(type(q)):
        return None
    shape, dst = tuple(q.shape), dtype(to)
    how, make = quantize_on_host.dequantizing(q.format, dst, shape, q.axis), make_of(y)
    is_packed = isinstance(q.data, PackedArray)
    if how is None or make is None or type(q.data.data if is_packed else q.data) not in HOST_KINDS:
        return None
    plan, asked = _dequantize_plan(q.dtype, dst), HOST_KINDS[type(y)].library
    attributes = {"format": q.format, "axis": q.axis, "scale_layout": q.scale_layout, "library": q.library}
    codes = type(q.data), is_packed, q.data.shape
    plan.add((how, asked, type(q), attributes, *codes, make, type(y), y.dtype, y.shape, None))
    return plan.plan
