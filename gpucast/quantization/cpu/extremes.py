# SPDX-License-Identifier: Apache-2.0
"""The first pass of the host path: the lowest and largest numbers of all blocks.

It compares codes, because NumPy reduces short rows of integers more quickly than of floats, and the codes of magnitudes
are ordered as the magnitudes are. NaN is above infinity in this order, so one comparison detects both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import dtype
from gpucast.core.formats import Format
from gpucast.quantization.cpu.block_grid import ELEMENTS, WITHIN, Tile, tiles
from gpucast.quantization.cpu.blocks import BlockGrid

Array = npt.NDArray[Any]

#: The block length up to which blocks are reduced pairwise, because NumPy reduces short rows slowly.
_SHORT = 64


def extremes(source: Array, grid: BlockGrid, format: Format) -> tuple[Array, Array, Array]:
    """(low, high, lost) of each block: its range as DOUBLE, and whether a NaN or infinity makes it NaN as a whole.

    The range covers the finite numbers: from the lowest to the largest one, 0 included, in formats whose scales depend
    on signs, and from 0 to the largest magnitude in others.
    """
    src = dtype(source.dtype)
    codes = source.view(src.code_numpy)
    infinity, sign = src.code_numpy.type(src.inf_code), src.code_numpy.type(src.sign_code)
    magnitude = ~sign
    # As unsigned integers, negative numbers are above all others, ordered by magnitude; as signed ones, below 0.
    high, low = np.zeros(grid.counts, src.code_numpy), np.zeros(grid.counts, src.code_numpy)
    lost = np.zeros(grid.counts, bool)
    scratch = np.empty(ELEMENTS, src.code_numpy)
    for tile in tiles(grid):
        x = codes[tile.elements]
        magnitudes = scratch[: x.size].reshape(x.shape)
        if not format.two_sided:
            x = np.bitwise_and(x, magnitude, out=magnitudes)
        elif not x.flags.c_contiguous:
            np.copyto(magnitudes, x)
            x = magnitudes
        top, bottom = _tile_extremes(x, tile, format.two_sided)
        bad = (top >= infinity) | (bottom >= infinity | sign)
        if bad.any():
            lost[tile.blocks] |= bad & format.nan_in_scale
            finite = np.where((x & magnitude) < infinity, x, src.code_numpy.type(0))
            top, bottom = _tile_extremes(finite, tile, format.two_sided)
        np.maximum(high[tile.blocks], top, out=high[tile.blocks])
        np.maximum(low[tile.blocks], bottom, out=low[tile.blocks])
    return _values(low, source.dtype), _values(high, source.dtype), lost


def _tile_extremes(codes: Array, tile: Tile, signed: bool) -> tuple[Array, Array]:
    """For each block the codes of its largest number, at least 0, and of its lowest, at most 0.

    `signed`: False where no number is negative.
    """
    top = _largest(codes, tile)
    if not signed:
        return top, np.zeros((), codes.dtype)
    sign = np.iinfo(codes.dtype).max // 2 + 1
    largest = _largest(codes.view(f"i{codes.itemsize}"), tile)
    return np.maximum(largest, 0).view(codes.dtype), np.where(top >= sign, top, 0)


def _largest(codes: Array, tile: Tile) -> Array:
    """The largest code of each block, compared as integers."""
    length = tile.split[5]
    if 1 < length <= _SHORT and tile.split[1] == tile.split[3] == 1:
        codes = codes.reshape(-1)
        while length % 2 == 0:
            codes, length = np.maximum(codes[::2], codes[1::2]), length // 2
    largest: Array = codes.reshape(*tile.split[:5], length).max(axis=WITHIN)
    return largest


def _values(codes: Array, kind: np.dtype[Any]) -> Array:
    return codes.view(kind).astype(np.float64)
