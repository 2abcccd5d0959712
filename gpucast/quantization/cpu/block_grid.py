# SPDX-License-Identifier: Apache-2.0
"""Arrays cut into boxes that fit the cache and in which blocks lie evenly, for the host path."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.formats import Format

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]

#: Elements of a box: a few scratch arrays of 4 or 8 bytes fit the second-level cache.
ELEMENTS = 1 << 16
#: Up to this length of blocks it pays to repeat what they share.
_REPEATED = 512
#: The dimensions of `Box.split` that lie within a block.
WITHIN = (1, 3, 5)


class Box(NamedTuple):
    """A part of a `Plan`'s array of three dimensions."""

    #: Which elements.
    elements: tuple[slice, slice, slice]
    #: Which blocks, in the grid of blocks.
    blocks: tuple[slice, slice, slice]
    #: The elements as (blocks, length in the block) for each dimension in turn.
    split: tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class Plan:
    """How an array is seen: three dimensions, each cut into blocks. No elements are moved for it."""

    shape: Triple
    lengths: Triple
    #: The number of blocks in each dimension.
    grid: Triple

    @classmethod
    def make(cls, format: Format, shape: tuple[int, ...], axis: int) -> Plan:
        """`axis` is not negative; a block of two lengths lies on the last two dimensions."""
        if format.block == "tensor":
            size = math.prod(shape)
            return cls((1, 1, size), (1, 1, max(size, 1)), (1, 1, 1))
        before, n, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if format.block == "axis":
            return cls((before, n, after), (max(before, 1), 1, max(after, 1)), (1, n, 1))
        lengths, grid = format.lengths(shape, axis), format.grid(shape, axis)
        if format.min_ndim == 2:
            lead, i, j = math.prod(shape[:-2]), -2, -1
            return cls((lead, shape[i], shape[j]), (1, lengths[i], lengths[j]), (lead, grid[i], grid[j]))
        if after == 1:
            return cls((1, before, n), (1, 1, lengths[axis]), (1, before, grid[axis]))
        return cls((before, n, after), (1, lengths[axis], 1), (before, grid[axis], after))

    def boxes(self) -> Iterator[Box]:
        """All boxes; each element is in one. A block longer than a box has several."""
        third = _step(ELEMENTS, self.shape[2], self.lengths[2])
        second = _step(ELEMENTS // third, self.shape[1], self.lengths[1])
        first = _step(ELEMENTS // (third * second), self.shape[0], self.lengths[0])
        cuts = [
            list(_cuts(n, length, step))
            for n, length, step in zip(self.shape, self.lengths, (first, second, third), strict=True)
        ]
        for a, b, c in itertools.product(*cuts):
            yield Box((a[0], b[0], c[0]), (a[1], b[1], c[1]), (*a[2], *b[2], *c[2]))


def _step(limit: int, n: int, length: int) -> int:
    """So many elements of a dimension at a time: whole blocks if one fits, else a part of a block."""
    step = max(1, min(limit, n))
    return step if step < length else step // length * length


def _cuts(n: int, length: int, step: int) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """Cut n elements: which elements, which blocks, (blocks, length). The ragged end is a cut of its own."""
    start = 0
    while start < n:
        if step < length:  # Within a block.
            stop = min(start + step, (start // length + 1) * length, n)
        else:
            stop = min(start + step, n // length * length) if start < n // length * length else n
        first, last = start // length, -(-stop // length)
        yield slice(start, stop), slice(first, last), (last - first, (stop - start) // (last - first))
        start = stop


def spread(of_blocks: Array, box: Box) -> Array:
    """An array over all blocks, for those of a box: shaped so that it goes with the elements in their `Box.split`."""
    x = of_blocks[box.blocks]
    length = box.split[5]
    if 1 < length <= _REPEATED:
        # NumPy works on long rows more quickly than on short ones with a number each.
        x = np.repeat(x, length, axis=2)
    else:
        length = 1
    return x.reshape(x.shape[0], 1, x.shape[1], 1, -1, length)
