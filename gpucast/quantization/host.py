# SPDX-License-Identifier: Apache-2.0
"""The quick path for NumPy arrays: the same bits as `gpucast.quantization.reference`, in chunks that stay in the cache.

Two passes over the array: the extremes of all blocks, then, with the scales, the codes. What is rounded is rounded by
`gpucast.host`; where FLOAT arithmetic stands in for DOUBLE, it is exact, or what it may get wrong is mended
(`gpucast.quantization.host_quotient`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import host, host_cast
from gpucast.dtypes import DType, dtype
from gpucast.quantization.boxes import ELEMENTS, Plan, spread
from gpucast.quantization.formats import Format, Parts
from gpucast.quantization.host_extremes import extremes
from gpucast.quantization.host_quotient import Quotient
from gpucast.random_bits import Random
from gpucast.rule import resolve

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
_SMALLEST_FLOAT = 2.0**-126


def quantize(x: Array, format: Format, *, axis: int = -1, scale: Any = None, random: Random | None = None) -> Parts:
    """As `gpucast.quantization.reference.quantize`.

    Extra memory grows with the number of blocks only; but an array with gaps is copied, and stochastic rounding takes
    8 bytes per element.
    """
    axis = axis % x.ndim if x.ndim else 0
    plan, shape = Plan.make(format, x.shape, axis), format.scales_shape(x.shape, axis)
    source = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("=")).reshape(plan.shape)
    with np.errstate(all="ignore"):
        low, high, lost = extremes(source, plan, format)
        s, g = _scales(low, high, format, scale, shape)
        s = s.reshape(plan.grid)
        zero = _zero_points(low, s, format)
        zero[lost] = 0
        data = np.empty(plan.shape, format.element.numpy)
        if random is not None:
            _stochastic(source, plan, format, s * g, lost, data, random)
        else:
            # With scales of FLOAT, which are amax / M but for a rounding, no quotient becomes M + 1.
            clamped = format.zero_points or scale is not None or format.scale is not _FLOAT or x.dtype == np.float64
            _nearest(source, plan, format, s * g, zero, lost, data, clamped)
        s[lost] = np.nan
    return Parts(
        data.reshape(x.shape),
        _cast(s, format.scale).reshape(shape),
        None if format.zero_point is None else zero.astype(format.zero_point.numpy).reshape(shape),
        np.asarray(g, np.float32) if format.global_scale else None,
    )


def _cast(x: Any, row: DType, **attributes: Any) -> Array:
    x = np.asarray(x)
    out = np.empty(x.shape, row.numpy)
    host.apply(x, resolve(dtype(x.dtype), row, **attributes), out)
    return out


# ---- scales ----


def _scales(low: Array, high: Array, format: Format, scale: Any, shape: tuple[int, ...]) -> tuple[Array, np.float64]:
    """The scales of all blocks and the global one, as DOUBLE."""
    g = np.float64(1)
    if format.global_scale:
        top = high.max(initial=0.0) / (format.divisor * format.scale.max)
        g = np.float64(max(float(_float(top)), _SMALLEST_FLOAT) if scale is None else np.float32(scale))
    elif scale is not None:
        return np.broadcast_to(np.asarray(scale, np.float32), shape).astype(np.float64), g
    if format.zero_points:
        s = _float((high - low) / (format.element.max - format.element.min))
    elif format.scale is _FLOAT:
        s = _float(high / format.divisor)
    elif format.scale is _E8M0:
        s = _cast(high / format.divisor, _E8M0, round_mode="down" if format.rule == "floor" else "up")
    else:
        s = _cast(high / (format.divisor * g), format.scale)
    return np.maximum(_cast(s, _DOUBLE), format.smallest_scale), g


def _float(x: Any) -> Array:
    return _cast(x, _FLOAT, overflow="saturate")


def _zero_points(low: Array, s: Array, format: Format) -> Array:
    if not format.zero_points:
        return np.zeros(s.shape, np.int32)
    lowest, largest = format.element.min, format.element.max
    return np.clip(lowest - np.rint(low / s), lowest, largest).astype(np.int32)


# ---- codes ----


def _nearest(
    source: Array, plan: Plan, format: Format, d: Array, zero: Array, lost: Array, data: Array, clamped: bool
) -> None:
    """Write the codes of the quotients by `d`, of all blocks."""
    divide = Quotient(source.dtype, format, d)
    integers = format.element.family == "int"
    rule = resolve(dtype(divide.dtype), format.element)
    shift, any_lost = zero.astype(divide.dtype), bool(lost.any())
    for box in plan.boxes():
        q = divide(source[box.elements], box)
        blocks = q.reshape(box.split)
        if integers:
            if format.zero_points:
                np.add(blocks, spread(shift[box.blocks]), out=blocks)
            if clamped:
                np.clip(q, format.element.min, format.element.max, out=q)
        if any_lost:
            np.copyto(blocks, 0, where=spread(lost[box.blocks]))
        if integers:
            _store_integers(q, data[box.elements], format.element)
        else:
            host.apply(q, rule, data[box.elements])


def _store_integers(q: Array, out: Array, row: DType) -> None:
    """`q` holds integers of the type's range."""
    codes = out.view(np.int8 if row.signed else np.uint8)
    np.copyto(codes, q, casting="unsafe")
    if row.packed:
        np.bitwise_and(out.view(np.uint8), row.code_mask, out=out.view(np.uint8))


def _stochastic(source: Array, plan: Plan, format: Format, d: Array, lost: Array, data: Array, random: Random) -> None:
    """As `_nearest`, of all elements at once: an element's random number goes by its place in the array."""
    divide = Quotient(np.dtype(np.float64), format, d)
    whole = np.empty(plan.shape)
    for box in plan.boxes():
        q = divide(source[box.elements], box)
        np.copyto(q.reshape(box.split), 0, where=spread(lost[box.blocks]))
        whole[box.elements] = q
    rule = resolve(_DOUBLE, format.element, rounding="stochastic")
    host_cast.apply(whole, rule, data, random)


# ---- back ----


def dequantize(parts: Parts, format: Format, to: DType, *, axis: int = -1) -> Array:
    """As `gpucast.quantization.reference.dequantize`, to the floating type `to`."""
    shape: tuple[int, ...] = parts.data.shape
    plan = Plan.make(format, shape, axis % len(shape) if shape else 0)
    data = np.ascontiguousarray(parts.data).reshape(plan.shape)
    out: Array = np.empty(plan.shape, to.numpy)
    with np.errstate(all="ignore"):
        s = _cast(parts.scales, _DOUBLE).reshape(plan.grid)
        if parts.global_scale is not None:
            s *= np.float64(parts.global_scale)
        lost, infinite = np.isnan(s), np.isinf(s)
        # FLOAT's own multiplication is exact for powers of two, and rounds once for FLOAT.
        wide = to is _DOUBLE or (format.scale is not _E8M0 and to is not _FLOAT) or parts.global_scale is not None
        row = _DOUBLE if wide else _FLOAT
        factor = s.astype(row.numpy)
        zero = None if parts.zero_points is None else parts.zero_points.astype(row.numpy).reshape(plan.grid)
        load, store = resolve(format.element, row), resolve(row, to)
        scratch = np.empty(ELEMENTS, row.numpy)
        any_lost, any_infinite = bool(lost.any()), bool(infinite.any())
        for box in plan.boxes():
            source, target = data[box.elements], out[box.elements]
            value = target if row is to and target.flags.c_contiguous else scratch[: source.size].reshape(source.shape)
            host.apply(source, load, value)
            blocks = value.reshape(box.split)
            if zero is not None:
                np.subtract(blocks, spread(zero[box.blocks]), out=blocks)
            nan = spread(lost[box.blocks])
            if any_infinite:
                # Processors differ in the sign of the NaN that comes of it.
                nan = nan | (spread(infinite[box.blocks]) & (blocks == 0))
            np.multiply(blocks, spread(factor[box.blocks]), out=blocks)
            if any_lost or any_infinite:
                np.copyto(blocks, np.nan, where=nan)
            if value is not target:
                host.apply(value, store, target)
    return out.reshape(shape)
