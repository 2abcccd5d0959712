# SPDX-License-Identifier: Apache-2.0
"""Checks of keywords that several calls have."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def integer(value: Any, what: str, expected: str = "an integer") -> int:
    """An integer of any class. TypeError, which begins with `what`, for all else, and for booleans."""
    if type(value) is int:
        # The function below would make torch.compile take every number for a constant.
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what}={value!r} must be {expected}")
