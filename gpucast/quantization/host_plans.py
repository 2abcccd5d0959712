# SPDX-License-Identifier: Apache-2.0
"""Plans of the functions that quantize on the host: a call like an earlier one is one of the module, or a few.

They serve the formats that `host_calls.quantizing` describes. An earlier result of the checked path says how
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
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.quantization import hadamard_on_host, host_calls
from gpucast.quantization.call_choices import NO_SIGNS, Signs, choices, signs_of
from gpucast.quantization.cuda_plans import is_record
from gpucast.quantization.formats import Format, Hadamard
from gpucast.quantization.option_checks import resolve_hadamard

#: How a new array looks, for ``MODULE.new_part``: the dtype and shape of NumPy's, those of packed bytes with the class
#: of a PackedArray and its other attributes, or a function that gives it; None for no array.
Made = Any
#: The parts of a `Quantized`, in the module's order.
_PARTS = ("data", "scales", "zero_points", "global_scale")
#: The most shapes of a plan, and the most kinds of results of a shape.
_MOST, _MOST_KINDS = 256, 8
_FLOAT = dtype("FLOAT")
#: A FLOAT holds each magnitude below as DOUBLE rounds it once.
_WHOLE = 1 << 53


class _Result(NamedTuple):
    """How the arrays of one shape are quantized."""

    #: For the module.
    how: bytes
    #: Whether the global scale is that of the array as it is, and what a call may give: steps may begin with another
    #: number.
    shares_global_scale: bool
    #: The class of results, `gpucast.Quantized`.
    quantized: Any
    format: Format
    #: The axis, and the shape of the codes as their class has it.
    axis: int
    shape: tuple[int, ...]
    kind: Any
    layout: Any
    #: The shape of the scales in the layout "linear".
    scales: tuple[int, ...]
    #: Each part.
    makes: tuple[Made, ...]

    def attributes(self, src: DType, library: str | None) -> dict[str, Any]:
        """Those of a `Quantized` that are not parts."""
        return {
            "format": self.format, "dtype": src, "axis": self.axis, "scale_layout": self.layout, "library": library,
        }  # fmt: skip

    def entry(self, src: DType, library: str | None, asked: Any, signs: Signs) -> tuple[Any, ...]:
        """The same for the module."""
        codes = self.kind, issubclass(self.kind, PackedArray), self.shape
        look = self.makes, object, None, None, None
        return self.how, asked, self.quantized, self.attributes(src, library), *codes, *look, *signs, self.scales, None

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


class _Entries:
    """What the module knows of calls that differ in the shapes of their arrays, and in their signs, alone."""

    def __init__(self) -> None:
        #: By shape; the latest first.
        self.by_shape: dict[Any, list[tuple[Any, ...]]] = {}

    def add(self, shape: tuple[int, ...], entry: tuple[Any, ...]) -> None:
        if len(self.by_shape) >= _MOST:
            self.by_shape.clear()
        # A call that the module leaves to the checked path comes again.
        others = [one for one in self.by_shape.get(shape, []) if not _is_same(one, entry)]
        self.by_shape[shape] = [entry, *others[: _MOST_KINDS - 1]]


def _is_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two entries serve the same calls: work, attributes and class of codes are equal."""
    return one[0] == other[0] and one[3] == other[3] and one[4] is other[4]


class _QuantizePlan:
    """What calls keep that differ in the shapes of their arrays, and in their signs, alone.

    The module serves those with one result that are rounded to nearest; `run` all others.
    """

    def __init__(self, src: DType, library: str | None, kind: type, rounding: Any, hadamard: Any) -> None:
        self.src, self.library, self.is_tensor = src, library, kind is not np.ndarray
        self.asked, self.asked_of_new = HOST_KINDS[kind].library, HOST_KINDS[kind].library_of_new
        self.rounding, self.choose = rounding, choices(hadamard)
        #: One result, or a plain and a transposed one.
        self.results: dict[Any, tuple[_Result, ...]] = {}
        self.entries = _Entries()
        self.plan = plans.make("quantized", self.run, kernels=self.entries.by_shape)

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
        given, top = number_of(scale), number_of(amax)
        if given is None and scale is not None and len(known) == 1 and getattr(scale, "shape", None) == known[0].scales:
            # An array that has one for each block.
            given = scale
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
                parts = [getattr(target, name) for name in _PARTS]
            if i and one.shares_global_scale and known[0].shares_global_scale and scale is amax is None:
                # The plain and the transposed result have the same global scale.
                given = _exact_float(results[0][3])
            codes = parts[0].data if isinstance(parts[0], PackedArray) else parts[0]
            asked = self.asked_of_new if target is None else self.asked
            if not MODULE.quantize(one.how, asked, x, codes, *parts[1:], given, top, *(random or (None, 0))):
                return None
            results.append(parts)
        if outs is not None:
            return out
        made = [self._made(one, parts) for one, parts in zip(known, results, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    def _takes(self, x: Any, outs: Any, known: tuple[_Result, ...]) -> bool:
        """Whether results can be written to these, as far as the module does not look."""
        if type(outs) is not tuple or len(outs) != len(known):
            return False
        for one, q in zip(known, outs, strict=True):
            if not one.is_like(q) or q.dtype is not self.src or q.library != self.library:
                return False
        if len(known) == 1:
            return True
        # The module sees one result at a time.
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
        vars(q).update(zip(_PARTS, parts, strict=True), **one.attributes(self.src, self.library))
        return q


def number_of(given: Any) -> float | None:
    """A number that the module takes for a FLOAT; None for any other object."""
    if type(given) is float:
        return given
    if type(given) is int and -_WHOLE < given < _WHOLE:
        return float(given)
    if type(given) is np.ndarray and not given.ndim and given.dtype == np.float32:
        return _exact_float(given)
    return None


@exact()
def _exact_float(given: Any) -> float:
    """A FLOAT, which the caller's modes may flush."""
    return float(given)


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
        one = _result(q, dtype(x.dtype), how, swaps)
        if one is None:
            return None
        known.append(one)
    kind: Any = type(x)
    plan = _quantize_plan(
        results[0].dtype, library, kind, rounding, hadamard, results[0].format, axis, layout, transpose
    )
    if len(plan.results) >= _MOST:
        plan.results.clear()
        plan.entries.by_shape.clear()
    plan.results[shape, choice[1]] = tuple(known)
    if rounding is None and len(known) == 1:
        plan.entries.add(shape, known[0].entry(plan.src, library, plan.asked, choice[1]))
    return plan.plan


def _turned(shape: tuple[int, ...], swaps: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if swaps else shape


def _result(q: Any, src: DType, hadamard: Hadamard | None, turned: bool) -> _Result | None:
    shape, layout = tuple(q.shape), q.scale_layout
    how = host_calls.producing(q.format, src, shape, q.axis, hadamard=hadamard, turned=turned, layout=layout)
    parts = tuple(getattr(q, name) for name in _PARTS)
    makes = tuple(make_of(part) for part in parts)
    if how is None or any((make is None) != (part is None) for make, part in zip(makes, parts, strict=True)):
        return None
    scales = q.format.scales_shape(shape, q.axis)
    shares = q.format.global_scale and q.format.steps is None and hadamard is None
    return _Result(how, shares, type(q), q.format, q.axis, q.data.shape, type(q.data), layout, scales, makes)


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
        self.kind = kind
        self.asked, self.asked_of_new = HOST_KINDS[kind].library, HOST_KINDS[kind].library_of_new
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
        y, asked = (MODULE.new_part(make), self.asked_of_new) if out is None else (out, self.asked)
        if y.shape != x.shape or y.dtype != kind or not MODULE.transform(how, asked, x, y):
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
    """What calls keep that differ in their `Quantized`, and in the signs of their transform, alone."""

    def __init__(self) -> None:
        #: By the shape of the codes.
        self.entries = _Entries()
        self.plan = plans.make("dequantized", kernels=self.entries.by_shape)


@lru_cache(maxsize=64)
def _dequantize_plan(src: DType, to: DType, hadamard: Any) -> _DequantizePlan:
    return _DequantizePlan()


def dequantized(q: Any, to: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    """The plan of a call that gave `y`, if there may be one."""
    length, signs, seed, _ = keywords
    known = NO_SIGNS if length is None else signs_of(signs, seed)
    if known is None or type(y) not in HOST_KINDS or (length is None and not signs is seed is None):
        return None
    # Results of the plan look like `y`, which may be an `out` of another library.
    if libraries.library_of(y) != q.library or np.shape(q.global_scale) != () or not is_record(type(q)):
        return None
    shape, dst = tuple(q.shape), dtype(to)
    hadamard = None if length is None else resolve_hadamard(length, signs, seed, "dequantize: hadamard")
    how = host_calls.restoring(q.format, dst, shape, q.axis, hadamard=hadamard, layout=q.scale_layout)
    make, is_packed = make_of(y), isinstance(q.data, PackedArray)
    if how is None or make is None or type(q.data.data if is_packed else q.data) not in HOST_KINDS:
        return None
    plan, asked = _dequantize_plan(q.dtype, dst, length), HOST_KINDS[type(y)].library
    attributes = {"format": q.format, "axis": q.axis, "scale_layout": q.scale_layout, "library": q.library}
    codes = type(q.data), is_packed, q.data.shape
    look = make, type(y), y.dtype, y.shape, None
    plan.entries.add(q.data.shape, (how, asked, type(q), attributes, *codes, *look, *known, None, None))
    return plan.plan
