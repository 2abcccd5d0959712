# SPDX-License-Identifier: Apache-2.0
"""Casts of tiles on the host: what they need is made once for all tiles of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.rule import Rule
from gpucast.cpu import lanes
from gpucast.quantization.cpu.block_grid import ELEMENTS

Array = npt.NDArray[Any]


class TileCast:
    """The cast of an array's tiles by one rule, where floating-point errors are ignored. For one thread."""

    def __init__(self, rule: Rule, size: int) -> None:
        """`size`: elements of the array."""
        self._rule, self._lane = rule, lanes.lane(rule, size, min(size, ELEMENTS))

    def __call__(self, x: Array, out: Array) -> None:
        """All of `out`, which does not overlap `x`. Both are native and aligned."""
        rule = self._rule
        if not x.size:
            return
        if x.flags.c_contiguous and out.flags.c_contiguous:
            self._lane(x.view(rule.src.code_numpy).reshape(-1), out.view(rule.dst.code_numpy).reshape(-1))
        else:
            lanes.apply(x, rule, out)


class TileWidening:
    """The numbers of an array's tiles in a type that holds them: as they lie there, or in scratch memory, contiguous.

    NaN may keep its payload.
    """

    def __init__(self, rule: Rule, size: int) -> None:
        self._same = rule.src is rule.dst
        # NumPy's own conversion does no more than a shift.
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
