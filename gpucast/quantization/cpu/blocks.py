# SPDX-License-Identifier: Apache-2.0
"""How an array is cut into blocks that share a scale, for the host and devices: three dimensions do for all formats.

`Format.lengths` and `Format.grid` state it in the array's own dimensions; the reference knows no other way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.formats import Format

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class BlockGrid:
    """An array in C order seen as outer x rows x columns, each dimension cut into blocks. No elements are moved for it.

    The last block of a dimension may be ragged.
    """

    shape: Triple
    #: Of a block, in elements of each dimension; at least 1.
    lengths: Triple
    #: The number of blocks in each dimension: the shape of an array over all blocks, in the order of the scales.
    counts: Triple
    #: False where one block spans all of the outer dimension, because a scale belongs to the tensor or to an index of
    #: the axis, however many they are.
    splits_outer: bool = True

    @classmethod
    def of(cls, format: Format, shape: tuple[int, ...], axis: int) -> BlockGrid:
        """The blocks of a format in an array of a shape. `axis` is not negative; shape () counts as (1,).

        A block of two lengths lies on the last two dimensions.
        """
        shape = shape or (1,)
        if format.block == "tensor":
            size = math.prod(shape)
            return cls((1, 1, size), (1, 1, max(size, 1)), (1, 1, 1), False)
        before, n, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if format.block == "axis":
            return cls((before, n, after), (max(before, 1), 1, max(after, 1)), (1, n, 1), False)
        lengths, grid = format.lengths(shape, axis), format.grid(shape, axis)
        if format.min_ndim == 2:
            outer, i, j = math.prod(shape[:-2]), -2, -1
            return cls((outer, shape[i], shape[j]), (1, lengths[i], lengths[j]), (outer, grid[i], grid[j]))
        if after == 1:
            return cls((1, before, n), (1, 1, lengths[axis]), (1, before, grid[axis]))
        return cls((before, n, after), (1, lengths[axis], 1), (before, grid[axis], after))

    @property
    def size(self) -> int:
        """How many blocks there are."""
        return math.prod(self.counts)

    @property
    def largest(self) -> int:
        """Elements of a block that is not ragged."""
        return math.prod(self.lengths)

    def block_of(self, elements: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The places, in C order, of the blocks that elements lie in, whose places in the array these are."""
        index = np.unravel_index(elements, self.shape)
        blocks = tuple(i // length for i, length in zip(index, self.lengths, strict=True))
        return np.asarray(np.ravel_multi_index(blocks, self.counts))
