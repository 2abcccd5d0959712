# SPDX-License-Identifier: Apache-2.0
"""How `gpucast.reference` rounds magnitudes: each rounding mode by its name, to integers and to a floating type.

A magnitude (a uint64 for integers, else a float64 or a fraction) is rounded to a code as if exponents had no upper
limit: codes continue beyond the largest one, and the caller handles what is out of range.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType
from gpucast.core.rounding import RoundingName, mode_of

NDArray = npt.NDArray[Any]

#: The powers of two that a 64-bit integer can be.
POWERS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def to_whole(magnitude: NDArray, rounding: RoundingName) -> NDArray:
    """Round float64 magnitudes to whole numbers."""
    whole = np.floor(magnitude)
    if rounding == "toward_zero":
        return np.asarray(whole)
    rest, upper = magnitude - whole, mode_of(rounding).takes_upper(np.fmod(whole, 2) == 1)
    return np.asarray(whole + ((rest > 0.5) | ((rest == 0.5) & upper)))


def to_codes(magnitude: NDArray, negative: NDArray, dst: DType, rounding: RoundingName) -> NDArray:
    """Round to a floating type, in any mode but at random."""
    narrow = dst.bits <= 16
    if mode_of(rounding).ties is not None:
        return (_nearest_in_table if narrow else _nearest_step)(magnitude, dst, rounding)
    below, inexact = _below_in_table(magnitude, dst) if narrow else _below_step(magnitude, dst)
    return _directed(below, inexact, negative, dst, rounding)


def fractions_to_codes(magnitudes: list[Fraction], negative: NDArray, dst: DType, rounding: RoundingName) -> NDArray:
    """The same for fractions."""
    pairs = [_below_fraction(magnitude, dst) for magnitude in magnitudes]
    below = np.array([code for code, _ in pairs], dtype=np.uint64)
    half = Fraction(1, 2)
    mode = mode_of(rounding)
    if mode.ties is not None:
        up = [rest > half or (rest == half and mode.takes_upper(code % 2 == 1)) for code, rest in pairs]
        return below + np.array(up, np.uint64)
    return _directed(below, np.array([rest != 0 for _, rest in pairs], bool), negative, dst, rounding)


def _nearest_in_table(magnitude: NDArray, dst: DType, rounding: RoundingName) -> NDArray:
    """To a type of 16 bits or fewer: to the nearer of two neighbours."""
    middle, floor, whole = _midpoints(dst)
    points = floor if magnitude.dtype == np.uint64 else middle
    # The code is the count of midpoints below the number; for an integer, of those whose integer part is below it.
    code = np.searchsorted(points, magnitude, side="left")
    at = np.minimum(code, len(points) - 1)
    tie = (points[at] == magnitude) & (code < len(points))
    if magnitude.dtype == np.uint64:
        tie &= whole[at]
    return np.asarray(code + (tie & mode_of(rounding).takes_upper(code % 2 == 1)), dtype=np.uint64)


def _nearest_step(magnitude: NDArray, dst: DType, rounding: RoundingName) -> NDArray:
    """To FLOAT or DOUBLE: to a whole number of ULPs."""
    code, rest, half = _steps(magnitude, dst)
    up = (rest > half) | ((rest == half) & mode_of(rounding).takes_upper(code % np.uint64(2) == 1))
    return np.asarray(code + up.astype(np.uint64))


def _below_step(magnitude: NDArray, dst: DType) -> tuple[NDArray, NDArray]:
    """The code of the value of FLOAT or DOUBLE at or below a magnitude, and whether the value is below."""
    code, rest, _ = _steps(magnitude, dst)
    return code, rest != 0


def _steps(magnitude: NDArray, dst: DType) -> tuple[NDArray, NDArray, Any]:
    """The code of the value at or below a magnitude; the rest, and half an ULP in the same unit.

    Up to the first normal number, codes count ULPs of 2^(1 - bias - mantissa_bits). Each further binade adds
    2^mantissa_bits codes and doubles the ULP. So (binade << mantissa_bits) + steps is the code, also after a carry.
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
    binade = (step - lowest).astype(np.uint64)
    code = (binade << np.uint64(dst.mantissa_bits)) + steps
    return np.asarray(np.where(magnitude == 0, np.uint64(0), code)), rest, half


def _directed(below: NDArray, inexact: NDArray, negative: NDArray, dst: DType, rounding: RoundingName) -> NDArray:
    """From the codes at or below magnitudes to those in a direction. Only away from zero is there one beyond the
    largest; in every other direction the largest is the last."""
    if rounding == "to_odd":
        code = below | inexact.astype(np.uint64)
    else:
        every = {"toward_zero": np.zeros_like(negative), "toward_positive": ~negative, "toward_negative": negative}
        away = every[rounding]
        code = below + (inexact & away).astype(np.uint64)
        if away.any():
            return np.asarray(np.where(away, code, np.minimum(code, np.uint64(dst.max_code))))
    return np.asarray(np.minimum(code, np.uint64(dst.max_code)))


def _below_in_table(magnitude: NDArray, dst: DType) -> tuple[NDArray, NDArray]:
    """The code of the value at or below a magnitude, in a type of 16 bits or fewer, and whether the value is below."""
    values, integers = _table_of_values(dst)
    if magnitude.dtype == np.float64:
        code = np.searchsorted(values, magnitude, side="right") - 1
        return code.astype(np.uint64), values[code] != magnitude
    code = np.searchsorted(integers, magnitude, side="right") - 1
    return code.astype(np.uint64), (integers[code] != magnitude) | (np.floor(values[code]) != values[code])


def random_in_table(magnitude: NDArray, words: NDArray, dst: DType) -> NDArray:
    """Round stochastically to a type of 16 bits or fewer.

    The fraction is the distance from the value at or below the magnitude to the magnitude, relative to the distance to
    the next value, truncated to multiples of 2^-32. The result is the next value's code if fraction and random word add
    up to 2^32 or more, else the code of the value below.
    """
    values, integers = _table_of_values(dst)
    points = values if magnitude.dtype == np.float64 else integers
    at = np.searchsorted(points, magnitude, side="right") - 1
    # Magnitudes beyond the table are out of range like its last value.
    next_to = np.minimum(at + 1, values.size - 1)
    step = np.frexp(values[next_to] - values[at])[1] - 1
    if magnitude.dtype == np.float64:
        # Exact: neighbours differ by a power of two, and by no more than the lower one's distance from zero.
        way = np.ldexp(np.where(at < next_to, magnitude - values[at], 0), 32 - step)
        fraction = np.floor(way).astype(np.uint64)
    else:
        # Where neighbours differ by at most 1, integers are values themselves and need no rounding.
        rest = np.where((at < next_to) & (step > 0), magnitude - points[at], np.uint64(0))
        left, right = (np.maximum(count, 0).astype(np.uint64) for count in (32 - step, step - 32))
        fraction = (rest << left) >> right
    return np.asarray(at.astype(np.uint64) + (fraction + words >> np.uint64(32)))


def _below_fraction(magnitude: Fraction, dst: DType) -> tuple[int, Fraction]:
    """The code of the value at or below a fraction, and the rest in ULPs."""
    if magnitude == 0:
        return 0, magnitude
    lowest = 1 - dst.bias - dst.mantissa_bits
    step = max(floor_log2(magnitude) - dst.mantissa_bits, lowest)
    # Limited, because the code has to fit in 64 bits; all such magnitudes are far out of range.
    binade = min(step - lowest, 1 << (dst.exponent_bits + 1))
    steps = magnitude / Fraction(2) ** step
    whole = math.floor(steps)
    return (binade << dst.mantissa_bits) + whole, steps - whole


def floor_log2(magnitude: Fraction) -> int:
    """The exponent of the largest power of two that is not greater than a positive number."""
    k = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return k if magnitude >= Fraction(2) ** k else k - 1


@lru_cache
@exact()
def _float_table(dst: DType) -> tuple[float, ...]:
    """The values of the codes 0, 1, 2, ..., and the value that would come next if exponents had no upper limit."""
    values = [float(dst.value(code)) for code in range(dst.max_code + 1)]
    return (*values, 2 * values[-1] - values[-2])


@lru_cache
@exact()
def _midpoints(dst: DType) -> tuple[NDArray, NDArray, NDArray]:
    """The midpoints between neighbouring values; the integers at or below them; which midpoints are integers.

    All are exact in float64, because a midpoint has only one bit more than the values. Integers above 2^64 become
    2^64 - 1, which compares alike with all 64-bit integers.
    """
    values = np.array(_float_table(dst))
    middle = (values[:-1] + values[1:]) / 2
    floor = np.array([min(int(m), 2**64 - 1) for m in middle.tolist()], dtype=np.uint64)
    return middle, floor, (middle == np.floor(middle)) & (middle < 2.0**64)


@lru_cache
@exact()
def _table_of_values(dst: DType) -> tuple[NDArray, NDArray]:
    """The values of `_float_table`, and these rounded up to integers, as far as they fit in 64 bits.

    An integer is at or above a value if it is at or above the rounded value.
    """
    values = np.array(_float_table(dst))
    return values, np.array([math.ceil(value) for value in values[values < 2.0**64].tolist()], dtype=np.uint64)
