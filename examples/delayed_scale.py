# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling: float8 tensors with scales that come from the steps before."""

from __future__ import annotations

from typing import Any

import gpucast


class DelayedScale:
    """A scale that fills a narrow type's range, from the largest magnitudes of the last steps.

    So one pass quantizes a tensor and measures it for the steps to come. Everything stays where the tensors are.
    Source: NVIDIA Transformer Engine, recipe DelayedScaling.
    """

    def __init__(self, to: str, xp: Any, history: int = 16) -> None:
        self.to, self.xp = to, xp
        self.largest = gpucast.finfo(to).max
        self.history = xp.zeros(history, xp.float32)
        self.amax = xp.zeros((), xp.float32)
        self.scale = xp.ones((), xp.float32)
        self.inverse = xp.ones((), xp.float32)

    def quantize(self, x: Any) -> Any:
        """x times the scale in the narrow type; `amax` takes in the largest magnitude of x."""
        return gpucast.cast(x, self.to, scale=self.scale, amax=self.amax)

    def update(self) -> None:
        """The scale of the next step. While only zeros, or anything that is not finite, were seen, it stays."""
        xp = self.xp
        self.history[1:] = self.history[:-1].copy()
        self.history[0] = self.amax
        self.amax[...] = 0
        amax = self.history.max()
        usable = xp.isfinite(amax) & (amax > 0)
        # A power of two whose inverse is one too: multiplying with them rounds nothing.
        power = xp.floor(xp.log2(self.largest / xp.where(usable, xp.maximum(amax, 2.0**-100), 1)))
        self.scale[...] = xp.where(usable, xp.exp2(power), self.scale)
        self.inverse[...] = 1 / self.scale
