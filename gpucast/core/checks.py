# SPDX-License-Identifier: Apache-2.0
"""Checks of keywords that several functions share."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpucast.core.arithmetic import exact


def integer(value: Any, what: str, expected: str = "an integer") -> int:
    """Return an integer of any class as an int. Booleans and all other objects raise a TypeError that begins with
    `what`.
    """
    if type(value) is int:
        # operator.index would make torch.compile take every number for a constant.
        return value
    if not isinstance(value, (bool, np.bool_)):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{what}={value!r} must be {expected}")


def count(value: Any, what: str, least: int, most: int, shown: str = "") -> int:
    """Return an integer in a range as an int; otherwise TypeError or ValueError. `shown`: how `most` is written."""
    number = integer(value, what)
    if not least <= number <= most:
        raise ValueError(f"{what}={value!r} must be from {least} to {shown or most}")
    return number


def state_with_keys(state: Any, keys: Sequence[str], caller: str) -> dict[str, Any]:
    """Return the argument of `load_state_dict` as a dict. TypeError for another object, ValueError for other keys."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{caller}: state is {type(state).__name__}; expected a dict")
    if set(state) != set(keys):
        raise ValueError(f"{caller}: state has the keys {sorted(map(str, state))}; expected {list(keys)}")
    return dict(state)


def is_real(value: Any) -> bool:
    """Tell whether an object is a real number of any class. Booleans and complex numbers are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def cut(text: str, most: int = 100) -> str:
    """A text of the caller's as a message repeats it: with quotes, and the beginning only where it is long."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... ({len(text)} characters)"


def is_number(value: Any) -> bool:
    """Tell whether an object is one number: real, true or false, or such a NumPy array of shape ()."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (numbers.Real, np.bool_))


@exact()
def rounded(value: Any, kind: Any) -> float:
    """A number that `is_number` takes, rounded to nearest once. `kind`: NumPy's type of FLOAT or DOUBLE."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    double = as_double(value)
    if kind is np.float32 and not int(np.float64(double).view(np.uint64)) & 1:
        # The odd DOUBLE beside the number is on its side of every boundary between FLOATs. Numbers of some classes
        # equal no DOUBLE, but are not above or below it either.
        if value > double:
            double = math.nextafter(double, math.inf)
        elif value < double:
            double = math.nextafter(double, -math.inf)
    return float(kind(double))


@exact()
def positive(value: Any, what: str, normal: bool = False) -> float:
    """Return a real number of any class, rounded to FLOAT: finite and above 0, or `normal`. Otherwise TypeError or
    ValueError that begins with `what`."""
    if not is_real(value):
        raise TypeError(f"{what}={value!r} must be a number")
    number = rounded(value, np.float32)
    if not (number > 0 and math.isfinite(number) and (not normal or number >= math.ldexp(1.0, -126))):
        least = "2^-126 or more" if normal else "above 0"
        raise ValueError(f"{what}={value!r} must be finite and {least}, as a FLOAT")
    return number


def as_double(value: Any) -> float:
    """Convert a real number of any class to DOUBLE. Integers and fractions beyond its range become infinite."""
    try:
        # Of those of other classes the processor makes a DOUBLE: of NumPy's FLOAT scalars, say.
        if isinstance(value, (float, int)):
            return float(value)
        with exact():
            return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def checked_shape(shape: Any, caller: str) -> tuple[int, ...]:
    """A shape as a tuple of non-negative ints; a single int is a shape of one dimension."""
    try:
        try:
            lengths: tuple[int, ...] = (operator.index(shape),)
        except TypeError:
            lengths = tuple(operator.index(length) for length in shape)
    except TypeError:
        raise TypeError(f"{caller}: shape={shape!r} must be an int or a sequence of ints") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"{caller}: shape={shape!r} has a negative length")
    return lengths
