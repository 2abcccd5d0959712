# SPDX-License-Identifier: Apache-2.0
"""Quantized arrays in another format with every number kept, such as MXFP4 as NVFP4 or FP8."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.packed import PackedArray, host_only
from gpucast.casting.cast import cast
from gpucast.core.arithmetic import exact
from gpucast.core.checks import positive
from gpucast.core.dtypes import dtype
from gpucast.quantization import recipes
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format
from gpucast.quantization.quantized import Quantized, checked_axis

NDArray = npt.NDArray[Any]
_CALLER = "repack"
_FLOAT, _E4M3, _E8M0 = dtype("FLOAT"), dtype("FLOAT8E4M3FN"), dtype("FLOAT8E8M0")


@exact()
def repack(q: Quantized, format: Any, *, axis: int | None = None, global_scale: float | None = None) -> Quantized:
    """The same numbers in another format: MXFP4 as NVFP4 or as FP8, UE8M0 scales as FLOAT, blocks as channels.

    Codes stay as they are where they can, with their scales repeated. Where blocks with different scales become one,
    codes are multiplied by the ratio of the scales. Every number is compared. `Quantized.with_layout` orders scales.

    Parameters
    ----------
    q
        A `Quantized` on the host, without zero points; `Quantized.get` copies one from a device.
    format
        As `quantize` takes it.
    axis
        The axis of the new blocks; that of q by default.
    global_scale
        The global scale of a new format that has one, a FLOAT. By default that of q, or a power of two.

    Raises
    ------
    TypeError
        For a `Quantized` on a device, or formats with zero points.
    ValueError
        Where a number would change: the message has the count.
    """
    if not isinstance(q, Quantized):
        raise TypeError(f"{_CALLER}: q is {type(q).__name__}; expected a Quantized")
    library, q = q.library, q.plain()
    target = recipes.find(format, _CALLER)
    host_only(q.data, f"{_CALLER}: q is on a device; q.get() is a copy on the host")
    if q.global_scale is not None and q.global_scale.ndim:
        raise ValueError(f"{_CALLER}: q has a global scale for each row; expected one for all")
    check_formats(q.format, target)
    axis = checked_axis(q.axis if axis is None else axis, q.shape, target, _CALLER)
    values = q.dequantize("DOUBLE")
    own = None if q.global_scale is None else float(q.global_scale)
    if global_scale is not None:
        own = positive(global_scale, f"{_CALLER}: global_scale")
    data: Any = None

    def changed(scales: NDArray, g: float) -> int:
        nonlocal data
        data, count = recoded(values, scales, g, target, axis)
        return count

    blocks = examined(values, _of_elements(q), target, axis)
    scales, g = chosen(blocks, target, own, changed, values.size, str(q.format))
    return Quantized(
        PackedArray.pack(data) if target.element.packed else data,
        scales.reshape(target.scales_shape(q.shape, axis)),
        target,
        global_scale=np.asarray(g, np.float32) if target.global_scale else None,
        dtype=q.dtype,
        axis=axis,
        library=library,
    )


def check_formats(*formats: Format) -> None:
    """TypeError for formats with zero points."""
    for one in formats:
        if one.zero_points:
            raise TypeError(f"{_CALLER}: {one} has zero points; expected formats without them")


@dataclass
class Blocks:
    """Of each block of numbers the largest magnitude, the largest scale that it has, and whether there is a NaN; 0
    where there are none."""

    amax: NDArray
    unit: NDArray
    lost: NDArray


def examined(values: NDArray, old: NDArray, format: Format, axis: int) -> Blocks:
    """The blocks that an array will have, given its numbers and the scale of each, both DOUBLE."""
    grid = BlockGrid.of(format, values.shape, axis)
    values, old = values.reshape(grid.shape), old.reshape(grid.shape)
    with np.errstate(invalid="ignore"):
        amax = _largest(np.where(np.isfinite(values), np.abs(values), 0), grid)
        unit = _largest(np.where((values != 0) & np.isfinite(old), old, 0), grid)
    return Blocks(amax, unit, _largest(np.isnan(values).astype(np.float64), grid) > 0)


def joined(pieces: Sequence[Blocks], format: Format) -> Blocks:
    """The blocks of an array, from those of its pieces in their order."""
    parts = [[part.reshape(-1) for part in vars(piece).values()] for piece in pieces]
    if format.block == "tensor":
        return Blocks(*(np.asarray(np.max(part, axis=0)) for part in zip(*parts, strict=True)))
    return Blocks(*map(np.concatenate, zip(*parts, strict=True)))


def chosen(
    blocks: Blocks, format: Format, own: float | None, changed: Callable[[NDArray, float], int], size: int, before: str
) -> tuple[NDArray, float]:
    """The scales, NaN where a block has one, and the global scale, that keep all numbers.

    `own`: a global scale that the numbers have already; `changed`: how many numbers scales change, of `size`.
    ValueError where all would change some.
    """
    counts = []
    for headroom in (False, True):
        scales, g = _scales(blocks, format, headroom, own)
        if not (count := changed(scales, g)):
            return scales, g
        counts.append(count)
    raise ValueError(f"{_CALLER}: {min(counts):,} of {size:,} numbers would change from {before} to {format}")


def recoded(values: NDArray, scales: NDArray, g: float, format: Format, axis: int) -> tuple[NDArray, int]:
    """The codes of numbers (DOUBLE), in their shape, and how many numbers they change."""
    grid = BlockGrid.of(format, values.shape, axis)
    factor = _spread(np.asarray(cast(scales, "DOUBLE")).reshape(grid.counts) * g, grid).reshape(values.shape)
    gone = np.isnan(factor)
    with np.errstate(all="ignore"):
        quotients = np.where(gone, 0.0, values / factor)
        options: Any = {"rounding": "nearest_even", "overflow": "saturate"} if format.element.family == "int" else {}
        codes = np.asarray(cast(quotients, format.element, **options))
        back = np.asarray(cast(codes, "DOUBLE")) * factor
        same = (back == values) | (np.isnan(back) & np.isnan(values))
    return codes, int(np.count_nonzero(~same))


def _of_elements(q: Quantized) -> NDArray:
    """The scale of each element, with the global one."""
    grid = BlockGrid.of(q.format, q.shape, q.axis)
    scales = np.asarray(cast(q.linear_scales(), "DOUBLE")).reshape(grid.counts)
    return _spread(scales * float(1 if q.global_scale is None else q.global_scale), grid).reshape(q.shape or (1,))


def _spread(of_blocks: NDArray, grid: BlockGrid) -> NDArray:
    """The values of blocks, repeated for each of their elements."""
    return of_blocks[np.ix_(*(np.arange(n) // length for n, length in zip(grid.shape, grid.lengths, strict=True)))]


def _largest(of_elements: NDArray, grid: BlockGrid) -> NDArray:
    """The largest number of each block, none of which is negative; 0 for a block without elements."""
    if not of_elements.size:
        return np.zeros(grid.counts)
    for dimension in (1, 2):
        starts = np.arange(0, grid.shape[dimension], grid.lengths[dimension])
        of_elements = np.maximum.reduceat(of_elements, starts, dimension)
    return of_elements if grid.splits_outer else of_elements.max(0, keepdims=True)


def _scales(blocks: Blocks, format: Format, headroom: bool, own: float | None) -> tuple[NDArray, float]:
    """The scales as they are stored, and the global one. With `headroom` scales are as small as the largest number
    allows, which leaves the most room for small ones."""
    amax, unit = blocks.amax, blocks.unit
    found = np.where(unit > 0, unit, 1.0)
    most = float(format.element.max)
    # The largest number has to fit in any case.
    with np.errstate(divide="ignore"):
        room = np.floor(np.log2(np.where(amax > 0, most * found / amax, 1.0)))
    found = np.ldexp(found, -(room if headroom else np.minimum(room, 0)).astype(np.int64))
    g = 1.0
    if format.global_scale:
        needed = found[unit > 0].max(initial=0.0) / float(_E4M3.max)
        g = math.ldexp(1.0, max(-126, math.ceil(math.log2(needed)))) if needed else 1.0
        g = g if own is None else own
        found = np.maximum(np.where(unit > 0, found / g, 1.0), float(_E4M3.value(1)))
    attributes: Any = {"round_mode": "up"} if format.scale is _E8M0 else {}
    rounded = np.asarray(cast(cast(found, format.scale, **attributes), "DOUBLE"))
    return np.asarray(cast(np.where(blocks.lost, np.nan, rounded), format.scale)), g
