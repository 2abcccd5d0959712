# SPDX-License-Identifier: Apache-2.0
"""Checks of keywords that several calls have."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from gpucast.core.arithmetic import exact


def integer(value: Any, what: str, expected: str = "an integer") -> int:
    """An integer of any class. TypeError, which begins with `what`, for all else, and for booleans."""
    if type(value) is int:
        # operator.index would make torch.compile take every number for a constant.
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what}={value!r} must be {expected}")


def is_real(value: Any) -> bool:
    """Whether it is a number of any class that is neither complex nor a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def as_double(value: Any) -> float:
    """A real number of any class as DOUBLE; infinity for integers and fractions beyond it."""
    try:
        # Of those of other classes the processor makes a DOUBLE: of NumPy's FLOAT scalars, say.
        if isinstance(value, (float, int)):
            return float(value)
        with exact():
            return float(value)
    except OverflowError:
        return math.inf
