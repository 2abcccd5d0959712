# SPDX-License-Identifier: Apache-2.0
"""The codebooks of 8-bit states: which number each code is, and which numbers get it.

A codebook is data. Each library's choice of a code grows with the number, so 255 numbers say all of it: the least one
of each code but the first. torchao's rule, by which they are found: of the neighbours a <= x < b, take b if
x - a >= (b - a) * 0.5, all in FLOAT.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact

Array = npt.NDArray[Any]
#: How many bits of a FLOAT follow those that name its cell.
CELL_SHIFT = 18
NAMES = ("torchao-dynamic8", "torchao-dynamic8-unsigned")


@dataclass(frozen=True, eq=False)
class Codebook:
    """What codes mean, and how they are chosen: FLOATs that ascend."""

    #: The number of each code.
    numbers: Array
    #: The least number of each code but the first.
    limits: Array
    #: The lower bound of scales.
    least: float = float(np.float32(1e-12))

    @cached_property
    def cells(self) -> tuple[int, Array]:
        """Where a kernel begins its search. FLOATs of up to 1 in magnitude that differ in their last `CELL_SHIFT` bits
        alone are a cell; smaller ones than the first positive limit are in the first cell. The codes of a cell are
        at most 3 above its number in the array. Where there are negative limits, cells of negative FLOATs follow."""
        positive = self.limits[self.limits > 0].view(np.uint32)
        first, one = (int(x) >> CELL_SHIFT for x in (positive[0], np.float32(1).view(np.uint32)))
        ends = (np.arange(first, one + 2, dtype=np.uint32) << CELL_SHIFT) - 1
        lowest = [0.0, *(ends[1:-1] + 1).view(np.float32)]
        if self.limits[0] < 0:
            lowest += [*-ends[1:].view(np.float32)]
        return first, np.minimum(np.searchsorted(self.limits, lowest, side="right"), 252).astype(np.uint8)


def find(name: Any, caller: str) -> Codebook:
    """The codebook of a name. ValueError for another one."""
    if name not in NAMES:
        raise ValueError(f"{caller}: codebook={name!r} must be {NAMES[0]!r} or {NAMES[1]!r}")
    return _torchao(not name.endswith("unsigned"))


@lru_cache
@exact()
def _torchao(signed: bool) -> Codebook:
    """torchao's `create_dynamic_map` and `quantize_8bit_with_qmap`."""
    one, half = np.float32(1), np.float32(0.5)
    magnitudes = [np.array([0, 1], np.float32)]
    for power in range(7):
        count = 2 ** (power + (not signed))
        # torch.linspace(0.1, 1, count + 1), by fused multiplications and additions from both ends.
        i, step = np.arange(count + 1), float((one - np.float32(0.1)) / np.float32(count))
        ends = np.where(i < (count + 1) // 2, float(np.float32(0.1)) + step * i, 1 - step * (count - i))
        ends = ends.astype(np.float32)
        means = (ends[:-1] + ends[1:]) / np.float32(2) * np.float32(10.0 ** (power - 6))
        magnitudes += [means, -means] if signed else [means]
    numbers = np.sort(np.concatenate(magnitudes))
    low, high = numbers[:-1], numbers[1:]
    # Halve the FLOATs between two neighbours until one is left.
    below, above = _order(low), _order(high)
    while (above - below > 1).any():
        middle = (below + above) // 2
        upper = _number(middle) - low >= (high - low) * half
        below, above = np.where(upper, below, middle), np.where(upper, middle, above)
    return Codebook(numbers, _number(above))


def _order(x: Array) -> Array:
    bits = x.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(2**31) - bits, bits)


def _number(order: Array) -> Array:
    return np.where(order < 0, -(2**31) - order, order).astype(np.int32).view(np.float32)
