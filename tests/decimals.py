# SPDX-License-Identifier: Apache-2.0
"""Decimal texts of exact fractions, and where a floating type decides: for the tests of text."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from gpucast.core.dtypes import DType


def text_of(value: Fraction, nudge: int = 0) -> str:
    """The whole decimal expansion of a fraction whose denominator is a power of two.

    With `nudge` +1 or -1 it is followed by a tail that makes the magnitude larger or smaller by less than 10^-1000 of
    its own size.
    """
    places = value.denominator.bit_length() - 1
    digits = abs(value.numerator) * 5**places
    if nudge:
        digits, places = digits * 10**1100 + nudge, places + 1100
    shown = str(digits).rjust(places + 1, "0")
    whole, fraction = shown[: len(shown) - places], shown[len(shown) - places :]
    return f"{'-' if value < 0 else ''}{whole}{'.' + fraction if fraction else ''}"


def boundaries(dtype: DType, rng: np.random.Generator, some: int) -> list[Fraction]:
    """Magnitudes at which rounding to a floating type changes: all, or the ends and `some` others of many."""
    if dtype.family == "e8m0":
        exponents = {-128, -127, -126, -1, 0, 1, 126, 127, 128, *rng.integers(-127, 128, some).tolist()}
        return [Fraction(2) ** k * Fraction(m, 4) for k in sorted(exponents) for m in (3, 4, 5, 6)]
    codes = (
        set(range(dtype.max_code + 1))
        if dtype.bits <= 8
        else _ends(dtype) | {int(c) for c in rng.integers(0, dtype.max_code, some)}
    )
    return [middle_above(dtype, code) for code in sorted(codes)]


def middle_above(dtype: DType, code: int) -> Fraction:
    """The midpoint of a finite magnitude and the next; after the largest, the next with an unlimited exponent."""
    if code < dtype.max_code:
        return (Fraction(dtype.value(code)) + Fraction(dtype.value(code + 1))) / 2
    return Fraction(dtype.max) + Fraction(2) ** (math.frexp(dtype.max)[1] - dtype.mantissa_bits - 2)


def _ends(dtype: DType) -> set[int]:
    first_normal, one = 1 << dtype.mantissa_bits, dtype.bias << dtype.mantissa_bits
    middle = {first_normal, one, one + first_normal}
    return {0, 1, 2, dtype.max_code - 1, dtype.max_code} | {code + step for code in middle for step in (-2, -1, 0, 1)}
