# SPDX-License-Identifier: Apache-2.0
"""The quick path for NumPy arrays: the same bits as `gpucast.reference.quantize`, in tiles that stay in the cache.

There are two passes over the array: first the extremes of all blocks, then, with the scales, the codes.
`gpucast.cpu.lanes` does all rounding. FLOAT arithmetic replaces DOUBLE where it is exact or its possible errors are
corrected (`gpucast.quantization.cpu.quotient`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format, Parts
from gpucast.core.options import Options
from gpucast.core.random import Random
from gpucast.core.rule import resolve
from gpucast.cpu import cast, lanes
from gpucast.quantization.cpu.block_cast import TileCast
from gpucast.quantization.cpu.block_grid import ELEMENTS, spread, tiles
from gpucast.quantization.cpu.blocks import BlockGrid
from gpucast.quantization.cpu.dequantize import Product
from gpucast.quantization.cpu.extremes import extremes
from gpucast.quantization.cpu.quotient import Quotient

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
_SMALLEST_FLOAT = 2.0**-126


class Compiled(Protocol):
    """Compiled functions for an array and a format, in place of this module's."""

    def extremes(self, source: Array, grid: BlockGrid) -> tuple[Array, Array, Array] | None: ...

    def codes(self, source: Array, grid: BlockGrid, d: Array, zero: Array, data: Array) -> None: ...


def _nothing(source: Array, grid: BlockGrid, format: Format) -> None:
    return None


def quantize(
    x: Array,
    format: Format,
    *,
    axis: int = -1,
    scale: Any = None,
    random: Random | None = None,
    find: Callable[[Array, BlockGrid, Format], Compiled | None] = _nothing,
) -> Parts:
    """As `gpucast.quantization.reference.quantize`; `find` looks for compiled functions.

    Extra memory grows with the number of blocks only, except that an array that is not C-contiguous is copied, and that
    stochastic rounding takes 8 bytes per element.
    """
    axis = axis % x.ndim if x.ndim else 0
    grid, shape = BlockGrid.of(format, x.shape, axis), format.scales_shape(x.shape, axis)
    source = np.require(x, x.dtype.newbyteorder("="), ["C", "A"]).reshape(grid.shape)
    with np.errstate(all="ignore"):
        # They only handle blocks whose scales are computed from their own numbers.
        is_own = random is None and (scale is None or format.global_scale)
        native = find(source, grid, format) if is_own else None
        native_extremes = None if native is None else native.extremes(source, grid)
        low, high, lost = extremes(source, grid, format) if native_extremes is None else native_extremes
        stored, g = _scales(low, high, format, scale, shape)
        stored = stored.reshape(grid.counts)
        s = _cast(stored, _DOUBLE)
        d = s * g if format.global_scale else s
        zero = _zero_points(low, s, format)
        any_lost = bool(lost.any())
        if any_lost:
            zero[lost] = 0
            stored[lost] = _cast(np.float64(np.nan), format.scale)
        data = np.empty(grid.shape, format.element.numpy)
        if random is not None:
            _stochastic(source, grid, format, d, lost, data, random)
        elif native is not None and native_extremes is not None:
            native.codes(source, grid, d, zero, data)
        else:
            limits = _limits(low, high, d, zero, format)
            _nearest(source, grid, format, d, zero, lost if any_lost else None, data, limits)
    return Parts(
        data.reshape(x.shape),
        stored.reshape(shape),
        None if format.zero_point is None else zero.astype(format.zero_point.numpy).reshape(shape),
        np.asarray(g, np.float32) if format.global_scale else None,
    )


def _cast(x: Any, dst: DType, **attributes: Any) -> Array:
    x = np.asarray(x)
    out = np.empty(x.shape, dst.numpy)
    lanes.apply(x, resolve(dtype(x.dtype), dst, Options(**attributes)), out)
    return out


# ---- scales ----


def _scales(low: Array, high: Array, format: Format, scale: Any, shape: tuple[int, ...]) -> tuple[Array, np.float64]:
    """The scales of all blocks as they are stored, and the global scale as DOUBLE."""
    g = np.float64(1)
    if format.global_scale:
        top = high.max(initial=0.0) / (format.divisor * format.scale.max)
        g = np.float64(max(float(_float(top)), _SMALLEST_FLOAT) if scale is None else np.float32(scale))
    elif scale is not None:
        return np.broadcast_to(np.asarray(scale, np.float32), shape).copy(), g
    if format.scale is _E8M0:
        return _powers(high / format.divisor, up=not format.rounds_down), g
    if format.has_float_scales:
        steps = format.element.max - format.element.min
        amax = np.maximum(-low * format.negative_weight, high)
        quotients = (high - low) / steps if format.zero_points else amax / format.divisor
        s = _cast(quotients, format.scale, overflow="saturate")
        return np.maximum(s, format.scale.numpy.type(format.smallest_scale)), g
    # The codes of positive numbers are ordered as the numbers are; the smallest is 1.
    codes = _cast(high / (format.divisor * g), format.scale).view(np.uint8)
    return np.maximum(codes, 1).view(format.scale.numpy), g


def _powers(x: Array, up: bool) -> Array:
    """Finite, nonnegative DOUBLE numbers rounded to FLOAT8E8M0: to the next power of two, up or down."""
    exponents = x.view(np.int64)
    if up:
        exponents = exponents + ((1 << _DOUBLE.mantissa_bits) - 1)
    codes = (exponents >> _DOUBLE.mantissa_bits) - (_DOUBLE.bias - _E8M0.bias)
    clipped: Array = np.clip(codes, 0, _E8M0.max_code).astype(np.uint8)
    return clipped.view(_E8M0.numpy)


def _float(x: Any) -> Array:
    return _cast(x, _FLOAT, overflow="saturate")


def _zero_points(low: Array, s: Array, format: Format) -> Array:
    if not format.zero_points:
        return np.zeros(s.shape, np.int32)
    lowest, largest = format.element.min, format.element.max
    return np.clip(lowest - np.rint(low / s), lowest, largest).astype(np.int32)


def _limits(low: Array, high: Array, d: Array, zero: Array, format: Format) -> tuple[float | None, float | None]:
    """The least and the largest code, each None if no quotient exceeds it, as the blocks' extremes show."""
    element = format.element
    if element.family != "int":
        return None, None
    # Elsewhere `high` is the largest magnitude.
    least = np.rint((low if format.two_sided else -high) / d) + zero
    return (
        float(element.min) if (least < element.min).any() else None,
        float(element.max) if (np.rint(high / d) + zero > element.max).any() else None,
    )


# ---- codes ----


def _nearest(
    source: Array,
    grid: BlockGrid,
    format: Format,
    d: Array,
    zero: Array,
    lost: Array | None,
    data: Array,
    limits: tuple[float | None, float | None],
) -> None:
    """Write the codes of the quotients by `d` of all blocks; those of `lost` blocks are 0."""
    divide = Quotient(source, format, d)
    integers = format.element.family == "int"
    store = None if integers else TileCast(resolve(divide.compute_dtype, format.element), source.size)
    shift = zero.astype(divide.compute_dtype.numpy)
    # np.maximum and np.minimum are quicker for two arrays than for an array and a number.
    least, most = (
        None if limit is None else np.full(min(source.size, ELEMENTS), limit, divide.compute_dtype.numpy)
        for limit in limits
    )
    for tile in tiles(grid):
        q = divide(source[tile.elements], tile)
        blocks = q.reshape(tile.split)
        if integers:
            if format.zero_points:
                np.add(blocks, spread(shift, tile), out=blocks)
            if least is not None:
                np.maximum(q, least[: q.size].reshape(q.shape), out=q)
            if most is not None:
                np.minimum(q, most[: q.size].reshape(q.shape), out=q)
        if lost is not None:
            np.copyto(blocks, 0, where=spread(lost, tile))
        if store is None:
            _store_integers(q, data[tile.elements], format.element)
        else:
            store(q, data[tile.elements])


def _store_integers(q: Array, out: Array, element: DType) -> None:
    """Store `q`, which holds integers in the range of the element type."""
    codes = out.view(np.int8 if element.signed else np.uint8)
    np.copyto(codes, q, casting="unsafe")
    if element.packed:
        np.bitwise_and(out.view(np.uint8), element.code_mask, out=out.view(np.uint8))


def _stochastic(
    source: Array, grid: BlockGrid, format: Format, d: Array, lost: Array, data: Array, random: Random
) -> None:
    """As `_nearest`, but casts all elements at once, because an element's random number depends on its index."""
    divide = Quotient(source, format, d, wide=True)
    quotients = np.empty(grid.shape)
    for tile in tiles(grid):
        q = divide(source[tile.elements], tile)
        np.copyto(q.reshape(tile.split), 0, where=spread(lost, tile))
        quotients[tile.elements] = q
    rule = resolve(_DOUBLE, format.element, Options(rounding="stochastic"))
    cast.into(quotients, rule, data, random)


# ---- back ----


def dequantize(parts: Parts, format: Format, to: DType, *, axis: int = -1) -> Array:
    """As `gpucast.quantization.reference.dequantize`, to the floating type `to`."""
    shape: tuple[int, ...] = parts.data.shape
    grid = BlockGrid.of(format, shape, axis % len(shape) if shape else 0)
    data = np.ascontiguousarray(parts.data).reshape(grid.shape)
    out: Array = np.empty(grid.shape, to.numpy)
    with np.errstate(all="ignore"):
        s = _cast(parts.scales, _DOUBLE).reshape(grid.counts)
        g = None if parts.global_scale is None else np.float64(parts.global_scale)
        zero = None if parts.zero_points is None else parts.zero_points.reshape(grid.counts)
        multiply = Product(data, format, to, s, g, zero)
        for tile in tiles(grid):
            multiply(data[tile.elements], tile, out[tile.elements])
    return out.reshape(shape)
