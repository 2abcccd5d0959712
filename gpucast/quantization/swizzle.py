# SPDX-License-Identifier: Apache-2.0
"""The orders in which matrix multiplications read block scales.

**128x4** is that of cuBLAS and the tensor cores of Blackwell.

The scales of a matrix form a matrix themselves, with the same rows and a column per block. It is padded to whole tiles
of 128 rows and 4 columns. The tiles of 512 scales follow each other in row-major order; within a tile, rows that are 32
apart are stored next to each other:

    offset(row, col) = ((row // 128) * (padded_cols // 4) + col // 4) * 512
                       + (row % 32) * 16 + (row % 128 // 32) * 4 + col % 4

Source: cuBLAS documentation, "1D Block Scaling Factors Layout" (offset = (outer % 32) * 16 + (outer / 32) * 4 + inner
in a tile of 128 x 4); torchao's `to_blocked` and TransformerEngine's swizzle give the same order. Padding is code 0.

**8x4** has tiles of 8 rows and 4 columns, row by row (vLLM and FlashInfer, for few rows).

**mn_major** is the transpose: columns one after the other, each padded to a multiple of 4 rows, so that it begins at 16
bytes, as TMA loads need it. Scales of one byte are packed first, four neighbours of a row to a word (DeepGEMM's
"MN-major TMA-aligned packed UE8M0"; its words are these bytes as INT32).
"""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.core.checks import checked_shape
from gpucast.quantization import cuda
from gpucast.quantization.scale_orders import WORD, ScaleOrder, order, size

LAYOUTS: tuple[ScaleOrder, ...] = get_args(ScaleOrder)


def swizzle(scales: Any, *, layout: ScaleOrder = "128x4", out: Any = None) -> Any:
    """Scales (NumPy or CuPy, of any shape but ()) in another order: a flat array, new or `out`.

    TypeError unless it is an array of one byte each ("mn_major": one or four). ValueError for the shape ().
    """
    _check(scales, "swizzle", layout)
    if not scales.ndim:
        raise ValueError("swizzle: scales has shape (); expected rows of scales")
    if namespace(scales) is not np:
        count = size(scales.shape, layout, scales.dtype.itemsize)
        return cuda.quantize.swizzle(scales, scales.shape, count, layout, out=out)
    row, (rows, cols) = order(layout), _matrix(scales.shape)
    code = np.dtype(f"u{scales.dtype.itemsize}")
    padded_scales = np.ascontiguousarray(scales).view(code).reshape(rows, cols)
    if (whole := row.padded(rows, cols, code.itemsize)) != (rows, cols):
        padded_scales = np.pad(padded_scales, [(0, more - n) for more, n in zip(whole, (rows, cols), strict=True)])
    words = padded_scales.view(np.uint32)
    tiles = np.ascontiguousarray(words.reshape(row.tiles(*words.shape)).transpose(row.axes))
    return into(out, tiles.reshape(-1).view(scales.dtype))


def unswizzle(scales: Any, shape: tuple[int, ...], *, layout: ScaleOrder = "128x4", out: Any = None) -> Any:
    """The inverse: scales of `shape`, new or `out`, from a flat array in that order.

    ValueError for an array of another length, and for the shape (). TypeError for any other object.
    """
    _check(scales, "unswizzle", layout)
    shape = checked_shape(shape, "unswizzle")
    if not shape:
        raise ValueError("unswizzle: shape=() has no rows of scales")
    if scales.shape != (count := size(shape, layout, scales.dtype.itemsize),):
        raise ValueError(
            f"unswizzle: scales has shape {scales.shape}; "
            f"scales of shape {shape} in the order {layout!r} have shape ({count},)"
        )
    if namespace(scales) is not np:
        return cuda.quantize.swizzle(scales, shape, scales.size, layout, back=True, out=out)
    row, (rows, cols) = order(layout), _matrix(shape)
    code = np.dtype(f"u{scales.dtype.itemsize}")
    whole = row.padded(rows, cols, code.itemsize)
    split = row.tiles(whole[0], whole[1] * code.itemsize // WORD)
    tiles = np.ascontiguousarray(scales).view(np.uint32).reshape([split[axis] for axis in row.axes])
    words = np.ascontiguousarray(tiles.transpose(np.argsort(row.axes)))
    padded_scales = words.view(code).reshape(whole)
    return into(out, np.ascontiguousarray(padded_scales[:rows, :cols]).view(scales.dtype).reshape(shape))


def into(out: Any, y: Any) -> Any:
    """A result, written to `out` if there is one."""
    if out is None:
        return y
    out[...] = y
    return out


def _check(scales: Any, caller: str, layout: ScaleOrder) -> None:
    if namespace(scales) is None:
        raise TypeError(f"{caller}: scales is of type {type(scales).__name__}; expected a NumPy or CuPy array")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"{caller}: layout={layout!r} is no order of scales; expected one of {', '.join(LAYOUTS)}")
    if scales.dtype.itemsize not in order(layout).itemsizes:
        sizes = " or ".join(map(str, order(layout).itemsizes))
        raise TypeError(f"{caller}: scales has dtype {scales.dtype}; the order {layout!r} takes items of {sizes} bytes")


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
