# SPDX-License-Identifier: Apache-2.0
"""How `gpucast.reference` rounds magnitudes to a floating type.

A magnitude (uint64 of an integer, else float64 or a fraction) becomes a code as if exponents had no upper limit: the
codes run on past the largest one, and what is out of range is judged by the caller.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType

Array = npt.NDArray[Any]

#: The powers of two that a 64-bit integer can be.
POWERS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def nearest_in_table(magnitude: Array, dst: DType) -> Array:
    """Round to a type of 16 bits or fewer: the nearer one of two neighbours, ties to the even code."""
    middle, floor, whole = _midpoints(dst)
    points = floor if magnitude.dtype == np.uint64 else middle
    # The midpoints below the number, for an integer the midpoints whose integer part is below it.
    code = np.searchsorted(points, magnitude, side="left")
    at = np.minimum(code, len(points) - 1)
    tie = (points[at] == magnitude) & (code < len(points))
    if magnitude.dtype == np.uint64:
        tie &= whole[at]
    return np.asarray(code + (tie & (code % 2 == 1)), dtype=np.uint64)


def nearest_step(magnitude: Array, dst: DType) -> Array:
    """Round to FLOAT or DOUBLE: whole steps of the spacing at the number, ties to an even count.

    A code is the count of steps of 2^(1 - bias - mantissa_bits) below the first normal number, and each further binade
    adds 2^mantissa_bits steps of twice the length: so (binade << mantissa_bits) + steps is the code, carry included.
    """
    lowest = 1 - dst.bias - dst.mantissa_bits
    if magnitude.dtype == np.uint64:
        exponent = np.maximum(np.searchsorted(POWERS, magnitude, side="right") - 1, 0)
        step = exponent - dst.mantissa_bits
        right = np.maximum(step, 0).astype(np.uint64)
        steps = (magnitude >> right) << np.maximum(-step, 0).astype(np.uint64)
        rest = magnitude - (magnitude >> right << right)
        half = np.where(right > 0, np.uint64(1) << (np.maximum(right, np.uint64(1)) - np.uint64(1)), np.uint64(1))
    else:
        exponent = np.frexp(magnitude)[1].astype(np.int64) - 1
        step = np.maximum(exponent - dst.mantissa_bits, lowest)
        scaled = np.ldexp(magnitude, (-step).astype(np.intc))
        whole = np.floor(scaled)
        steps, rest, half = whole.astype(np.uint64), scaled - whole, np.float64(0.5)
    up = (rest > half) | ((rest == half) & (steps % np.uint64(2) == 1))
    binade = (step - lowest).astype(np.uint64)
    code = (binade << np.uint64(dst.mantissa_bits)) + steps + up.astype(np.uint64)
    return np.asarray(np.where(magnitude == 0, np.uint64(0), code))


def random_in_table(magnitude: Array, words: Array, dst: DType) -> Array:
    """The code of the value at or below a magnitude, or of the next one: of that where the fraction of the way there,
    in whole 2^-32, and the random word add up to 2^32 or more."""
    values, integers = _table_of_values(dst)
    points = values if magnitude.dtype == np.float64 else integers
    at = np.searchsorted(points, magnitude, side="right") - 1
    # What lies beyond the table is as far out of range as its last value.
    next_to = np.minimum(at + 1, values.size - 1)
    step = np.frexp(values[next_to] - values[at])[1] - 1
    if magnitude.dtype == np.float64:
        # Exact: two neighbours lie a power of two apart, and no further from each other than the lower one from zero.
        way = np.ldexp(np.where(at < next_to, magnitude - values[at], 0), 32 - step)
        fraction = np.floor(way).astype(np.uint64)
    else:
        # Where values are no more than 1 apart, integers are among them.
        rest = np.where((at < next_to) & (step > 0), magnitude - points[at], np.uint64(0))
        left, right = (np.maximum(count, 0).astype(np.uint64) for count in (32 - step, step - 32))
        fraction = (rest << left) >> right
    return np.asarray(at.astype(np.uint64) + (fraction + words >> np.uint64(32)))


def nearest_fraction(magnitude: Fraction, dst: DType) -> int:
    """As `nearest_step`; Python rounds a fraction to the nearest integer, ties to even."""
    if magnitude == 0:
        return 0
    lowest = 1 - dst.bias - dst.mantissa_bits
    step = max(floor_log2(magnitude) - dst.mantissa_bits, lowest)
    # Far out of range every magnitude rounds alike; the count has to fit 64 bits.
    binade = min(step - lowest, 1 << (dst.exponent_bits + 1))
    return (binade << dst.mantissa_bits) + round(magnitude / Fraction(2) ** step)


def floor_log2(magnitude: Fraction) -> int:
    """The exponent of the largest power of two that is not above a positive number."""
    k = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return k if magnitude >= Fraction(2) ** k else k - 1


@lru_cache
def _float_table(dst: DType) -> tuple[float, ...]:
    """The values of the codes 0, 1, 2, ... and one more, where the next would be if exponents had no upper limit."""
    values = [float(dst.value(code)) for code in range(dst.max_code + 1)]
    return (*values, 2 * values[-1] - values[-2])


@lru_cache
def _midpoints(dst: DType) -> tuple[Array, Array, Array]:
    """The midpoints between neighbouring values; the integers at or below them; which midpoints are integers.

    Each is exact in float64: a midpoint has one bit more than the values. Integers above 2^64 count as 2^64 - 1: no
    64-bit number lies between.
    """
    values = np.array(_float_table(dst))
    middle = (values[:-1] + values[1:]) / 2
    floor = np.array([min(int(m), 2**64 - 1) for m in middle.tolist()], dtype=np.uint64)
    return middle, floor, (middle == np.floor(middle)) & (middle < 2.0**64)


@lru_cache
def _table_of_values(dst: DType) -> tuple[Array, Array]:
    """The values of `_float_table`, and the least integers that are no smaller, as far as they fit in 64 bits: an
    integer is at or above a value where it is at or above that."""
    values = np.array(_float_table(dst))
    return values, np.array([math.ceil(value) for value in values[values < 2.0**64].tolist()], dtype=np.uint64)
