# SPDX-License-Identifier: Apache-2.0
"""The checked inputs of a fused cast, which does more than a cast in one pass over memory."""

from __future__ import annotations

import math
import struct
from typing import Any, Literal, NamedTuple

from gpucast.core.dtypes import dtype
from gpucast.core.random import Random

#: The number that values are multiplied with: "none", one that FLOAT holds ("narrow"), or any DOUBLE ("wide").
Scaling = Literal["none", "narrow", "wide"]

_FLOAT = dtype("FLOAT")


class FusedInputs(NamedTuple):
    """The inputs of a fused cast besides the array and the rule. Its arrays are where the cast runs."""

    #: The number that every value is multiplied with: itself, or a CuPy array of one FLOAT or DOUBLE.
    scale: Any = None
    #: An array of one FLOAT that becomes the largest magnitude of the source if that is larger.
    amax: Any = None
    #: An array of one byte (or bool) that becomes 0 if a source value is infinite or NaN.
    finite: Any = None
    random: Random | None = None

    @property
    def scaling(self) -> Scaling:
        """The kind of `scale`."""
        return scaling_of(self.scale)


def scaling_of(scale: Any) -> Scaling:
    """The kind of a `FusedInputs.scale`."""
    if scale is None:
        return "none"
    if isinstance(scale, float):
        return "narrow" if scale == _as_float(scale) else "wide"
    return "narrow" if scale.dtype == _FLOAT.numpy else "wide"


def _as_float(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.inf
