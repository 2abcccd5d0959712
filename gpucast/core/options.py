# SPDX-License-Identifier: Apache-2.0
"""What one call of `gpucast.cast` or `cast_like` asks for, apart from the array and the type."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import numpy as np

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CAST_VERSIONS, DEFAULT_OPSET, OverflowKeyword, Rounding, RoundMode

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


class Options(NamedTuple):
    """The keywords of `gpucast.cast` as they were given, then who asks and the versions of its operator.

    A tuple, because `gpucast.casting.cast.cast_with` takes the same values as a plain tuple, too: to make this object
    costs a tenth of a warm call, so it is made only where no plan serves.
    """

    saturate: Any = True
    round_mode: Any = "up"
    opset: Any = DEFAULT_OPSET
    rounding: Any = None
    overflow: Any = None
    seed: Any = None
    offset: Any = 0
    scale: Any = None
    amax: Any = None
    device: Any = None
    out: Any = None
    copy: Any = True
    caller: str = "cast"
    versions: tuple[int, ...] = CAST_VERSIONS


#: The operator's attributes, and the keywords of ours that reach further: what decides on a rule.
ATTRIBUTES = Options._fields[:5]


def destination(to: Any, caller: str) -> DType:
    """The dtype to cast to: `to` of `gpucast.cast`, or the dtype of `like` of `cast_like`, as the TypeError says."""
    return dtype(to, caller="cast: to=" if caller == "cast" else f"{caller}: like.dtype=")
