# SPDX-License-Identifier: Apache-2.0
"""How an array is cut into blocks that share a scale, on the host and on devices: always in three dimensions.

`Format.lengths` and `Format.grid` describe the blocks in the array's own dimensions; the reference uses only these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.quantization.formats import Format

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class BlockGrid:
    """An array in C order viewed as outer x rows x columns, each dimension cut into blocks. No elements are moved.

    The last block of a dimension may be ragged.
    """

    shape: Triple
    #: The lengths of a block in elements; at least 1.
    lengths: Triple
    #: The number of blocks in each dimension: the shape of an array over all blocks, in the order of the scales.
    counts: Triple
    #: Whether the outer dimension is cut into blocks. False for formats "..._tensor" and "..._axis", in which one
    #: block spans all of it.
    splits_outer: bool = True

    @classmethod
    def of(cls, format: Format, shape: tuple[int, ...], axis: int) -> BlockGrid:
        """The blocks of a format in an array of that shape. `axis` is not negative; shape () counts as (1,).

        Two-dimensional blocks are always on the last two dimensions.
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
        """The number of blocks."""
        return math.prod(self.counts)

    @property
    def largest(self) -> int:
        """The number of elements of a block that is not ragged."""
        return math.prod(self.lengths)

    def block_of(self, elements: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The C-order indices of the blocks of elements, which are given by their C-order indices in the array."""
        index = np.unravel_index(elements, self.shape)
        blocks = tuple(i // length for i, length in zip(index, self.lengths, strict=True))
        return np.asarray(np.ravel_multi_index(blocks, self.counts))
