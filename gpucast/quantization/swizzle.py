# SPDX-License-Identifier: Apache-2.0
"""The order "128x4" in which cuBLAS and the tensor cores of Blackwell read block scales.

The scales of a matrix form a matrix themselves, with the same rows and a column per block. It is padded to whole tiles
of 128 rows and 4 columns. The tiles of 512 scales follow each other in row-major order; within a tile, rows that are 32
apart are stored next to each other:

    offset(row, col) = ((row // 128) * (padded_cols // 4) + col // 4) * 512
                       + (row % 32) * 16 + (row % 128 // 32) * 4 + col % 4

Source: cuBLAS documentation, "1D Block Scaling Factors Layout" (offset = (outer % 32) * 16 + (outer / 32) * 4 + inner
in a tile of 128 x 4); torchao's `to_blocked` and TransformerEngine's swizzle give the same order. Padding is code 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import checked_shape
from gpucast.quantization import gpu

_ROWS, _COLS = 128, 4


def padded(rows: int, cols: int) -> tuple[int, int]:
    """The shape of the padded matrix."""
    return -(-rows // _ROWS) * _ROWS, -(-cols // _COLS) * _COLS


def size(shape: tuple[int, ...]) -> int:
    """The number of scales, padding included, for scales of this shape; all dimensions but the last are rows."""
    return math.prod(padded(*_matrix(shape)))


def offset(row: int, col: int, cols: int) -> int:
    """The index of the scale (row, col) of a matrix with `cols` columns."""
    tiles = padded(1, cols)[1] // _COLS
    tile = row // _ROWS * tiles + col // _COLS
    return tile * _ROWS * _COLS + row % 32 * 16 + row % _ROWS // 32 * 4 + col % _COLS


def swizzle(scales: Any, *, out: Any = None) -> Any:
    """Scales of one byte each (NumPy or CuPy, of any shape but ()) in the order "128x4": a flat array, new or `out`.

    TypeError for any other object, ValueError for the shape ().
    """
    _check(scales, "swizzle")
    if not scales.ndim:
        raise ValueError("swizzle: scales has shape (); expected rows of scales")
    if namespace(scales) is not np:
        return gpu.quantize_on_gpu.swizzle(scales, scales.shape, size(scales.shape), out=out)
    rows, cols = _matrix(scales.shape)
    padded_scales = np.zeros(padded(rows, cols), dtype=np.uint8)
    padded_scales[:rows, :cols] = scales.view(np.uint8).reshape(rows, cols)
    tile_rows, tile_cols = padded_scales.shape[0] // _ROWS, padded_scales.shape[1] // _COLS
    tiles = padded_scales.reshape(tile_rows, 4, 32, tile_cols, _COLS).transpose(0, 3, 2, 1, 4)
    return _in(out, np.ascontiguousarray(tiles).reshape(-1).view(scales.dtype))


def unswizzle(scales: Any, shape: tuple[int, ...], *, out: Any = None) -> Any:
    """The inverse: scales of `shape`, new or `out`, from a flat array in the order "128x4".

    ValueError for an array of another length, and for the shape (). TypeError for any other object.
    """
    _check(scales, "unswizzle")
    shape = checked_shape(shape, "unswizzle")
    if not shape:
        raise ValueError("unswizzle: shape=() has no rows of scales")
    if scales.shape != (size(shape),):
        raise ValueError(
            f"unswizzle: scales has shape {scales.shape}; "
            f"scales of shape {shape} in the order '128x4' have shape ({size(shape)},)"
        )
    if namespace(scales) is not np:
        return gpu.quantize_on_gpu.swizzle(scales, shape, scales.size, back=True, out=out)
    rows, cols = _matrix(shape)
    padded_rows, padded_cols = padded(rows, cols)
    tiles = scales.view(np.uint8).reshape(padded_rows // _ROWS, padded_cols // _COLS, 32, 4, _COLS)
    padded_scales = tiles.transpose(0, 3, 2, 1, 4).reshape(padded_rows, padded_cols)
    return _in(out, np.ascontiguousarray(padded_scales[:rows, :cols]).view(scales.dtype).reshape(shape))


def _in(out: Any, found: Any) -> Any:
    if out is None:
        return found
    out[...] = found
    return out


def _check(scales: Any, caller: str) -> None:
    if namespace(scales) is None:
        raise TypeError(f"{caller}: scales is of type {type(scales).__name__}; expected a NumPy or CuPy array")
    if scales.dtype.itemsize != 1:
        raise TypeError(f"{caller}: scales has dtype {scales.dtype}; expected one of one byte")


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]
