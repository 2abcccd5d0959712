# SPDX-License-Identifier: Apache-2.0
"""Casts of tiles on the host. What they need is allocated once for all tiles of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.rule import CastRule
from gpucast.cpu import lanes
from gpucast.quantization.cpu.block_grid import ELEMENTS

Array = npt.NDArray[Any]


class TileCast:
    """Casts an array's tiles by one rule. Floating-point errors must be ignored; only one thread may use it."""

    def __init__(self, rule: CastRule, size: int) -> None:
        """`size`: elements of the array."""
        self._rule, self._lane = rule, lanes.lane(rule, size, min(size, ELEMENTS))

    def __call__(self, x: Array, out: Array) -> None:
        """Cast `x` into all of `out`, which does not overlap it. Both are native and aligned."""
        rule = self._rule
        if not x.size:
            return
        if x.flags.c_contiguous and out.flags.c_contiguous:
            self._lane(x.view(rule.src.code_numpy).reshape(-1), out.view(rule.dst.code_numpy).reshape(-1))
        else:
            lanes.apply(x, rule, out)


class TileWidening:
    """Converts an array's tiles to a wider type that holds the same numbers.

    The result is contiguous: the tile itself, or scratch memory. NaN may keep its payload.
    """

    def __init__(self, rule: CastRule, size: int) -> None:
        self._same = rule.src is rule.dst
        # NumPy's own conversion of BFLOAT16 is a mere shift.
        self._plain = self._same or rule.src.name == "BFLOAT16"
        self._cast = None if self._plain else TileCast(rule, size)
        self._scratch = np.empty(min(size, ELEMENTS), rule.dst.numpy)

    def __call__(self, x: Array) -> Array:
        if self._same and x.flags.c_contiguous:
            return x
        out = self._scratch[: x.size].reshape(x.shape)
        if self._cast is None:
            np.copyto(out, x, casting="unsafe")
        else:
            self._cast(x, out)
        return out
