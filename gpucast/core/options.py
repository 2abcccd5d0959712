# SPDX-License-Identifier: Apache-2.0
"""What one call of `gpucast.cast` or `cast_like` asks for, beside the array and the type."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpucast.core.dtypes import DType, dtype


class Call(NamedTuple):
    """The keywords of `gpucast.cast` as they were given, then who asks and the versions of its operator.

    Made only where a plan does not serve. The order is that of the parameters that `gpucast.cast` hands on.
    """

    saturate: Any
    round_mode: Any
    opset: Any
    rounding: Any
    overflow: Any
    seed: Any
    offset: Any
    scale: Any
    amax: Any
    device: Any
    out: Any
    copy: Any
    who: str
    versions: tuple[int, ...]


#: The operator's attributes, and the keywords of ours that reach further: what decides on a rule.
ATTRIBUTES = Call._fields[:5]


def destination(to: Any, who: str) -> DType:
    """The row of `to`, for the caller of `gpucast.cast` or, `to` being the dtype of `like`, of `cast_like`."""
    return dtype(to, who="cast: to=" if who == "cast" else f"{who}: like.dtype=")
