# SPDX-License-Identifier: Apache-2.0
"""The table of the orders in which matrix multiplications read block scales. `gpucast.quantization.swizzle` describes
each; the struct of a row in ``kernels/scale_orders.cuh`` computes the place of one scale.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

#: The orders besides "linear".
ScaleOrder = Literal["128x4", "8x4", "mn_major"]
ScaleLayout = Literal["linear", ScaleOrder]
#: The bytes of a row's scales that stay together in every order but "linear".
WORD = 4


class ScaleOrderRow(NamedTuple):
    """One order. Scales form a matrix with a column for each block, padded to whole words and whole tiles of rows."""

    name: ScaleLayout
    #: Its struct in C++.
    struct: str
    #: The number of rows a multiple of which it is padded to.
    height: int = 1
    #: The rows of a tile by dimensions: the padded matrix of words has the shape (tiles, *split, words). Then the order
    #: in which memory has these.
    split: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    #: The sizes of scales in bytes.
    itemsizes: tuple[int, ...] = (1,)
    #: Whether it is for matrices alone, and then also for blocks of several rows.
    matrices: bool = False
    #: Whether groups of rows take it.
    groups: bool = True

    def padded(self, rows: int, columns: int, itemsize: int) -> tuple[int, int]:
        """The shape of the padded matrix."""
        width = WORD // itemsize
        return -(-rows // self.height) * self.height, -(-columns // width) * width

    def tiles(self, rows: int, words: int) -> tuple[int, ...]:
        """The shape that the padded matrix of words is split into."""
        return (rows // math.prod(self.split), *self.split, words)


#: The only list of them; kernels know each by its struct.
SCALE_ORDERS = (
    ScaleOrderRow("linear", "Linear", itemsizes=(1, 2, 4)),
    ScaleOrderRow("128x4", "Order128x4", 128, (4, 32), (0, 3, 2, 1)),
    ScaleOrderRow("8x4", "Order8x4", 8, (8,), (0, 2, 1), groups=False),
    ScaleOrderRow("mn_major", "MnMajor", 4, (), (1, 0), itemsizes=(1, 4), matrices=True),
)
SCALE_LAYOUTS: tuple[ScaleLayout, ...] = tuple(row.name for row in SCALE_ORDERS)


def order(layout: ScaleLayout) -> ScaleOrderRow:
    """The row of a layout."""
    return SCALE_ORDERS[SCALE_LAYOUTS.index(layout)]


def size(shape: tuple[int, ...], layout: ScaleOrder = "128x4", itemsize: int = 1) -> int:
    """The number of scales, padding included, for scales of this shape; all dimensions but the last are rows."""
    return math.prod(order(layout).padded(math.prod(shape[:-1]), shape[-1], itemsize))


def in_layout(shape: tuple[int, ...], layout: ScaleLayout, itemsize: int) -> tuple[int, ...]:
    """The shape of scales in a layout, given their shape in the layout "linear"."""
    return shape if layout == "linear" else (size(shape, layout, itemsize),)
