# SPDX-License-Identifier: Apache-2.0
"""A checked call that quantizes, and the results that it asks for, as the engines of blocks take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpucast.core.fuse import Random
from gpucast.quantization.formats import Format, Hadamard, Parts
from gpucast.quantization.scale_orders import ScaleLayout


class ResultSpec(NamedTuple):
    """A requested result of an array."""

    #: Whether the last two axes of the array are swapped for it.
    swapped: bool
    #: An axis of the result, not negative.
    axis: int
    #: The caller's scales or global scale; None if they are to be computed.
    scale: Any = None
    #: The transform of the numbers along the axis; such a result has a global scale of its own.
    hadamard: Hadamard | None = None

    def shape(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result of an array."""
        return (*of[:-2], of[-1], of[-2]) if self.swapped else of


class BlockCall(NamedTuple):
    """The checked quantization of one array. All results share one global scale, except results of transforms."""

    x: Any
    format: Format
    results: Sequence[ResultSpec]
    random: Random | None = None
    #: Parts that are written instead of new ones; on a device with a workspace, if it is to be kept.
    targets: Sequence[Parts] | None = None
    workspace: Any = None
    #: A FLOAT on the device to find the global scale from, in place of the largest magnitude of x.
    amax: Any = None
    #: The order of the scales.
    layout: ScaleLayout = "linear"

    @property
    def transforms(self) -> bool:
        """Whether the numbers of a result are transformed."""
        return any(one.hadamard for one in self.results)
