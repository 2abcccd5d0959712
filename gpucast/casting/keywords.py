# SPDX-License-Identifier: Apache-2.0
"""The types of what casts take, for type checkers."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from gpucast.core.rule import OverflowKeyword, Rounding, RoundMode

#: What a cast on the host makes NumPy arrays of.
HostInput = np.ndarray[Any, Any] | np.generic | float | str | bytes | list[Any] | tuple[Any, ...]


class CastKeywords(TypedDict, total=False):
    """The keywords of `gpucast.cast` that have no part in the kind of its result, for type checkers."""

    saturate: bool
    round_mode: RoundMode
    rounding: Rounding | None
    overflow: OverflowKeyword | None
    seed: int | None
    offset: int
    scale: Any
    amax: Any
    copy: bool
