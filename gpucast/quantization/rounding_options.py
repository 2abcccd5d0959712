# SPDX-License-Identifier: Apache-2.0
"""The check of what a call says of random rounding."""

from __future__ import annotations

from typing import Any

from gpucast.core import fused_ops
from gpucast.core.formats import Format
from gpucast.core.fused_ops import Random
from gpucast.core.rule import STOCHASTIC


def resolve_random(format: Format | None, rounding: Any, seed: Any, offset: Any, caller: str) -> Random | None:
    """The random words of a call that rounds to a format's elements (None: to a type); None for no such call.

    TypeError or ValueError for anything that is not random rounding of floats.
    """
    random = fused_ops.resolve_random(rounding, seed, offset, caller)
    if rounding is not None and rounding != STOCHASTIC:
        raise ValueError(f"{caller}: rounding={rounding!r} must be None or {STOCHASTIC!r}")
    if random is not None and format is not None and format.element.family != "float":
        raise ValueError(
            f"{caller}: rounding={STOCHASTIC!r} is for elements that are floats; {format} has {format.element}"
        )
    return random
