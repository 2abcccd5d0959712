# SPDX-License-Identifier: Apache-2.0
"""Checks of keywords that several functions share."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from gpucast.core.arithmetic import exact


def integer(value: Any, what: str, expected: str = "an integer") -> int:
    """Return an integer of any class as an int. Booleans and all else raise a TypeError that begins with `what`."""
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
    """Tell whether an object is a real number of any class. Booleans and complex numbers are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def as_double(value: Any) -> float:
    """Convert a real number of any class to DOUBLE. Integers and fractions beyond its range become infinity."""
    try:
        # Of those of other classes the processor makes a DOUBLE: of NumPy's FLOAT scalars, say.
        if isinstance(value, (float, int)):
            return float(value)
        with exact():
            return float(value)
    except OverflowError:
        return math.inf
