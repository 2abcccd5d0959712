# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.quantize` and `gpucast.dequantize` on the host: a call like an earlier one is one of the module.

They serve the formats that `quantize_on_host.quantizing` describes, with scales in the layout "linear". An earlier
result of the checked path says how results look.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays import libraries
from gpucast.arrays.packed import LibraryPackedArray, PackedArray
from gpucast.casting import plans
from gpucast.casting.list_plans import HOST_KINDS
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.kernel.recording import Recording
from gpucast.quantization import cuda_plans, quantize_on_host
from gpucast.quantization.formats import Format

hit_quantize, _keep_quantize = plans.function(
    "kkkkf.ffkfk.",
    axis=-1, scale_layout="linear", transpose=False, rounding=None, seed=None, offset=0, scale=None, amax=None,
    hadamard=None, signs=None, device=None, out=None,
)  # fmt: skip
hit_dequantize, _keep_dequantize = plans.function("kff.", hadamard=None, signs=None, seed=None, out=None)

#: Gives a new array.
Make = Callable[[], Any]
#: The most shapes of a plan.
_MOST = 256
_PARTS = ("data", "scales", "zero_points", "global_scale")


class _Result(NamedTuple):
    """How the arrays of one shape are quantized."""

    #: For the module.
    how: bytes
    #: The class of results, `gpucast.Quantized`.
    quantized: Any
    format: Format
    #: The axis, and the shape of the codes as their class has it.
    axis: int
    shape: tuple[int, ...]
    kind: Any
    #: A new array for each part; None for one that there is not.
    makes: tuple[Make | None, ...]

    def is_like(self, q: Any) -> bool:
        """Whether an earlier result is one of these. (The module looks at its memory.)"""
        return (
            type(q) is self.quantized
            and q.format is self.format
            and q.axis == self.axis
            and q.scale_layout == "linear"
            and type(q.data) is self.kind
            and q.data.shape == self.shape
        )


class QuantizePlan:
    """What calls keep that differ in the shapes of their arrays alone."""

    def __init__(self, src: DType, library: str | None, kind: type) -> None:
        self.src, self.library, self.asked = src, library, HOST_KINDS[kind].library
        self.results: dict[tuple[int, ...], _Result] = {}
        self.plan = plans.make("", self.run)

    def run(self, x: Any, seed: Any, offset: Any, scale: Any, amax: Any, signs: Any, out: Any) -> Any:
        known = self.results.get(x.shape)
        if known is None or type(offset) is not int or offset or not (seed is scale is amax is signs is None):
            return None
        if out is None:
            parts = [None if make is None else make() for make in known.makes]
        elif known.is_like(out) and out.dtype is self.src and out.library == self.library:
            parts = [out.data, out.scales, out.zero_points, out.global_scale]
        else:
            return None
        data = parts[0]
        memory = data.data if isinstance(data, PackedArray) else data
        if not MODULE.quantize(known.how, self.asked, x, memory, *parts[1:]):
            return None
        if out is not None:
            return out
        q = object.__new__(known.quantized)
        # Past __init__, whose checks take longer than all else here.
        vars(q).update(
            data=data, scales=parts[1], zero_points=parts[2], global_scale=parts[3], format=known.format,
            dtype=self.src, axis=known.axis, scale_layout="linear", library=self.library,
        )  # fmt: skip
        return q


@lru_cache(maxsize=1024)
def _quantize_plan(src: DType, format: Format, axis: Any, library: str | None, kind: Any) -> QuantizePlan:
    return QuantizePlan(src, library, kind)


def keep_quantize(x: Any, asked: Any, keywords: tuple[Any, ...], q: Any, recording: Recording) -> None:
    """Keep the plan of a call that gave `q`, if there may be one. `keywords`: as `hit_quantize` takes them."""
    if recording.launches:
        plan = cuda_plans.keep_quantize(x, asked, keywords, q, recording)
    else:
        plan = _host_plan(x, asked, keywords, q)
    if plan is not None:
        plans.KINDS.add(type(x))
        _keep_quantize(x, asked, *keywords, plan)


def _host_plan(x: Any, asked: Any, keywords: tuple[Any, ...], q: Any) -> Any:
    """The plan of a call on the host, if there may be one."""
    axis, layout, transpose, rounding, seed, _, scale, amax, hadamard, signs, device, _ = keywords
    if not (layout == "linear" and transpose is False and seed is scale is amax is signs is None):
        return None
    if not (rounding is hadamard is device is None) or MODULE is None or type(x) not in HOST_KINDS:
        return None
    lasting = isinstance(asked, (str, Format)) and plans.is_lasting(axis)
    if not lasting or np.shape(q.global_scale) != ():
        return None
    how = quantize_on_host.quantizing(q.format, q.dtype, tuple(q.shape), q.axis)
    makes = tuple(_make(getattr(q, name)) for name in _PARTS)
    if how is None or any(
        (make is None) != (getattr(q, name) is None) for make, name in zip(makes, _PARTS, strict=True)
    ):
        return None
    kind: Any = type(x)
    plan = _quantize_plan(q.dtype, q.format, axis, q.library, kind)
    if len(plan.results) >= _MOST:
        plan.results.clear()
    plan.results[tuple(x.shape)] = _Result(how, type(q), q.format, q.axis, tuple(q.data.shape), type(q.data), makes)
    return plan.plan


def _make(part: Any) -> Make | None:
    """What gives new arrays of the host like a part; None for one that plans do not make."""
    if type(part) is np.ndarray:
        return partial(np.empty, part.shape, part.dtype)
    if type(part) in (PackedArray, LibraryPackedArray) and type(part.data) is np.ndarray:
        return partial(_new_packed, type(part), part.data.size, part.dtype, part.shape, getattr(part, "library", None))
    adapter = None if part is None else libraries.find(part)
    return None if adapter is None else adapter.like(part)


def _new_packed(kind: type, nbytes: int, element: DType, shape: tuple[int, ...], library: str | None) -> Any:
    array: Any = object.__new__(kind)
    array.data, array.dtype, array.shape = np.empty(nbytes, np.uint8), element, shape
    if library is not None:
        array.library = library
    return array


# ---- back ----


class _Numbers(NamedTuple):
    """How results of one kind become numbers."""

    how: bytes
    format: Format
    shape: tuple[int, ...]
    #: Of an `out`.
    kind: Any
    dtype: Any
    make: Make


class DequantizePlan:
    """What calls keep that differ in their `Quantized` alone."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], _Numbers] = {}
        self.plan = plans.make("", self.run)

    def run(self, q: Any, signs: Any, seed: Any, out: Any) -> Any:
        data = q.data
        known = self.numbers.get((id(q.format), q.axis, q.library, type(data), data.shape))
        if known is None or q.scale_layout != "linear" or not signs is seed is None:
            return None
        y = known.make() if out is None else out
        if out is not None and (type(out) is not known.kind or out.dtype != known.dtype or out.shape != known.shape):
            return None
        memory = data.data if isinstance(data, PackedArray) else data
        asked = None if type(y) is np.ndarray else HOST_KINDS[known.kind].library
        done = MODULE.dequantize(known.how, asked, memory, q.scales, q.zero_points, q.global_scale, y)
        return y if done else None


@lru_cache(maxsize=64)
def _dequantize_plan(src: DType, to: DType) -> DequantizePlan:
    return DequantizePlan()


def keep_dequantize(q: Any, to: Any, keywords: tuple[Any, ...], y: Any, recording: Recording) -> None:
    """Keep the plan of a call that gave `y`, if there may be one. `keywords`: as `hit_dequantize` takes them."""
    if recording.launches:
        plan = cuda_plans.keep_dequantize(q, to, keywords, y, recording)
    else:
        plan = _host_plan_back(q, to, keywords, y)
    if plan is not None:
        _keep_dequantize(q, to, *keywords, plan)


def _host_plan_back(q: Any, to: Any, keywords: tuple[Any, ...], y: Any) -> Any:
    """The plan of a call on the host, if there may be one."""
    if MODULE is None or not keywords[0] is keywords[1] is keywords[2] is None or type(y) not in HOST_KINDS:
        return None
    if q.scale_layout != "linear" or np.shape(q.global_scale) != () or not plans.is_lasting(to):
        return None
    shape, dst = tuple(q.shape), dtype(to)
    how, make = quantize_on_host.dequantizing(q.format, dst, shape, q.axis), _make(y)
    memory = q.data.data if isinstance(q.data, PackedArray) else q.data
    if how is None or make is None or type(memory) not in HOST_KINDS:
        return None
    plan = _dequantize_plan(q.dtype, dst)
    if len(plan.numbers) >= _MOST:
        plan.numbers.clear()
    key = (id(q.format), q.axis, q.library, type(q.data), q.data.shape)
    plan.numbers[key] = _Numbers(how, q.format, tuple(y.shape), type(y), y.dtype, make)
    return plan.plan
