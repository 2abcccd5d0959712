# SPDX-License-Identifier: Apache-2.0
"""Cuts arrays into tiles for the host path. Each fits the cache, and has blocks of equal length or a part of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.quantization.cpu.blocks import BlockGrid

Array = npt.NDArray[Any]

#: Elements of a tile: a few scratch arrays of 4 or 8 bytes fit the second-level cache.
ELEMENTS = 1 << 16
#: The block length up to which it is quicker to repeat the values that a block shares.
_REPEATED = 512
#: The dimensions of `Tile.split` that are positions within a block.
WITHIN = (1, 3, 5)


class Tile(NamedTuple):
    """A part of the three-dimensional array of a `BlockGrid`."""

    #: Its elements.
    elements: tuple[slice, slice, slice]
    #: Its blocks, in an array over all blocks.
    blocks: tuple[slice, slice, slice]
    #: The shape in which each dimension is split in two: (blocks, length within the block).
    split: tuple[int, int, int, int, int, int]


def tiles(grid: BlockGrid) -> Iterator[Tile]:
    """All tiles; each element is in one. A block longer than a tile has several."""
    third = _step(ELEMENTS, grid.shape[2], grid.lengths[2])
    second = _step(ELEMENTS // third, grid.shape[1], grid.lengths[1])
    first = _step(ELEMENTS // (third * second), grid.shape[0], grid.lengths[0])
    cuts = [
        list(_cuts(n, length, step))
        for n, length, step in zip(grid.shape, grid.lengths, (first, second, third), strict=True)
    ]
    for a, b, c in itertools.product(*cuts):
        yield Tile((a[0], b[0], c[0]), (a[1], b[1], c[1]), (*a[2], *b[2], *c[2]))


def _step(limit: int, n: int, length: int) -> int:
    """How many elements of a dimension a tile has: whole blocks if one fits, else a part of a block."""
    step = max(1, min(limit, n))
    return step if step < length else step // length * length


def _cuts(n: int, length: int, step: int) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """Cut n elements into (elements, blocks, (number of blocks, length)). A ragged last block is a cut of its own."""
    start = 0
    while start < n:
        if step < length:  # Within a block.
            stop = min(start + step, (start // length + 1) * length, n)
        else:
            stop = min(start + step, n // length * length) if start < n // length * length else n
        first, last = start // length, -(-stop // length)
        yield slice(start, stop), slice(first, last), (last - first, (stop - start) // (last - first))
        start = stop


def spread(of_blocks: Array, tile: Tile) -> Array:
    """A tile's part of an array over all blocks, shaped so that it broadcasts with the elements in `Tile.split`."""
    x = of_blocks[tile.blocks]
    length = tile.split[5]
    if 1 < length <= _REPEATED:
        # NumPy is quicker on long rows than when it broadcasts a number over each of many short ones.
        x = np.repeat(x, length, axis=2)
    else:
        length = 1
    return x.reshape(x.shape[0], 1, x.shape[1], 1, -1, length)
