# SPDX-License-Identifier: Apache-2.0
"""The magnitudes at which a rounded result changes, in exact rational arithmetic from two rows of the dtype table."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from gpucast.core.dtypes import DType
from gpucast.core.rule import RoundMode
from gpucast.parity.proof.terms import Term, search


def value(src: DType, size: int) -> Fraction | None:
    """The value of a magnitude: of a float's code without its sign (None: infinity), or of an integer."""
    if not src.is_float:
        return Fraction(size)
    return None if size > src.max_code else Fraction(src.value(size))


def first(src: DType, bound: Fraction, above: bool) -> int:
    """The lowest magnitude at or above a bound, with `above` strictly above it. Infinity if there is none."""
    low, high = 0, (src.max_code + 1 if src.is_float else 1 << src.bits)
    while low < high:
        middle = (low + high) // 2
        found = value(src, middle)
        assert found is not None
        if found > bound or (found == bound and not above):
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=256)
def midpoints(src: DType, dst: DType, away: bool = False) -> tuple[int, ...]:
    """The lowest magnitudes that round to nearest to code 1, 2, ..., and to the first code that is too large: ties to
    the even code, or `away` from zero."""
    values = [Fraction(dst.value(code)) for code in range(dst.max_code + 1)]
    values.append(2 * values[-1] - values[-2])
    codes = range(1, len(values))
    return tuple(first(src, (values[code - 1] + values[code]) / 2, code % 2 == 1 and not away) for code in codes)


def nearest(size: Term, src: DType, dst: DType, over: int, width: int, away: bool = False) -> Term:
    """Round a magnitude to the nearest code of `width` bits, ties even or `away` from zero. Overflow gives `over`."""
    return search(size, midpoints(src, dst, away), [*range(dst.max_code + 1), over], width)


@lru_cache(maxsize=256)
def _values(src: DType, dst: DType, above: bool) -> tuple[int, ...]:
    """For each code of a float, the lowest magnitude that reaches its value, or with `above` exceeds it."""
    start = 0 if above else 1
    return tuple(first(src, Fraction(dst.value(code)), above) for code in range(start, dst.max_code + 1))


def neighbours(size: Term, src: DType, dst: DType, over: int, width: int) -> tuple[Term, Term]:
    """The codes below and above a magnitude, or equal to it, in `width` bits. `over` stands above the largest."""
    every = list(range(dst.max_code + 1))
    below = search(size, _values(src, dst, above=False), every, width)
    return below, search(size, _values(src, dst, above=True), [*every, over], width)


@lru_cache(maxsize=256)
def powers(src: DType, dst: DType, mode: RoundMode) -> tuple[int, ...]:
    """The magnitudes at which the code of FLOAT8E8M0 changes, after the lowest one that reaches its smallest value."""
    values = [Fraction(dst.value(code)) for code in range(dst.max_code + 1)]
    change = {"up": Fraction(1, 2), "nearest": Fraction(3, 4), "down": Fraction(1)}[mode]
    steps = [first(src, change * number, above=mode == "up") for number in values[1:]]
    return (first(src, values[0], above=False), *steps, first(src, values[-1], above=True))


def rounded(number: Fraction, dst: DType, mode: str) -> int:
    """The code of a magnitude in an IEEE type. Overflow gives infinity, or toward zero the largest finite value."""
    if number == 0:
        return 0
    exponent = number.numerator.bit_length() - number.denominator.bit_length()
    exponent -= number < Fraction(2) ** exponent
    lowest = 1 - dst.bias - dst.mantissa_bits
    step = max(exponent - dst.mantissa_bits, lowest)
    steps = number / Fraction(2) ** step
    half = Fraction(1, 2)
    whole = {"rn": round(steps), "ra": math.floor(steps + half), "rz": math.floor(steps), "rp": math.ceil(steps)}[mode]
    return min(((step - lowest) << dst.mantissa_bits) + whole, dst.inf_code - (mode == "rz"))
