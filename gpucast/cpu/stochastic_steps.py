# SPDX-License-Identifier: Apache-2.0
"""Rounding of float64 numbers to floats of 16 bits or fewer by counting ULPs, in few NumPy calls.

Within a binade the ULP is a constant power of two. So a magnitude is a number of ULPs, exact as float64, and its code
is that number, rounded, plus a constant of the binade. The factor and the constant are looked up by binade.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.cpu.encode import encode

Array = npt.NDArray[Any]
#: ``put(values, words, out)`` stores float64 numbers (flat, contiguous, native) as codes. `words`: a random uint32 word
#: for each, or None to round to nearest.
Put = Callable[[Array, Any, Array], None]

#: The bits of a random word: the fractional bits in which ULPs are counted.
_WORD = 32
#: Constants as arrays, because NumPy takes longer to convert a Python number than to work on a short array.
_MANTISSA, _BEYOND, _SHIFT, _BACK = np.array(52, np.uint64), np.array(2.0**50), np.array(_WORD), np.array(2.0**-_WORD)


class _Binades(NamedTuple):
    """The tables of a type, indexed by the upper 12 bits of a float64: sign and exponent."""

    #: How many units of 2^-32 ULP are in 1; negative for negative numbers.
    steps: Array
    #: Added to a number of ULPs to get the code's index: the first code of the binade less its ULPs, plus `half` for
    #: negative numbers.
    base: Array
    #: Larger than any index of a positive number. All binades beyond the type's share one, so that indices stay small.
    half: int


@lru_cache(maxsize=64)
def _binades(dst: DType) -> _Binades:
    index = np.arange(1 << 12)
    first, negative = 1 - dst.bias, index >> 11 != 0
    exponent = np.maximum((index & 0x7FF) - 1023, first)
    # The last exponent is that of infinities and NaN, which are handled separately.
    steps = np.ldexp(1.0, np.where(index & 0x7FF == 0x7FF, 0, dst.mantissa_bits + _WORD - exponent))
    last = (dst.max_code >> dst.mantissa_bits) + 1
    base = np.minimum(exponent - first, last) << dst.mantissa_bits
    half = (last + 2 << dst.mantissa_bits) + 1
    signed, base = np.where(negative, -steps, steps), (base + half * negative).astype(np.int64)
    return _Binades(_frozen(signed), _frozen(base), half)


@lru_cache(maxsize=64)
def put(rule: CastRule) -> Put:
    """The function that stores numbers as codes of ``rule.dst``; the rule's source and rounding do not matter.

    NumPy's floating-point errors must be off where it runs. Safe to call from several threads.
    """
    dst = rule.dst
    steps_in_1, base, half = _binades(dst)
    codes_of_sums = _frozen(_codes_of_sums(rule, half))
    with np.errstate(all="ignore"):
        special = _frozen(encode(np.array([np.inf, -np.inf, np.nan, -np.nan]), rule).astype(dst.code_numpy))

    def lane(values: Array, words: Array, out: Array) -> None:
        binade = (values.view(np.uint64) >> _MANTISSA).view(np.int64)
        # Only the sums of infinities and NaN are out of range, and are replaced below; "clip" is quicker than "raise".
        steps = steps_in_1.take(binade, mode="clip")
        steps *= values
        if words is None:
            sums = np.rint(steps * _BACK).astype(np.int64)
        else:
            sums = steps.astype(np.int64)
            sums += words
            sums >>= _SHIFT
        sums += base.take(binade, mode="clip")
        codes_of_sums.take(sums, out=out, mode="clip")
        # No finite number has so many ULPs.
        if not np.maximum.reduce(steps) < _BEYOND:
            at = np.flatnonzero(~(steps < _BEYOND))
            lost = values[at]
            out[at] = special[2 * np.isnan(lost) + np.signbit(lost)]

    return lane


def fractions(values: Array, dst: DType) -> Array:
    """The fraction of numbers counted in ULPs, in units of 2^-32, as uint32; for infinities and NaN any value."""
    binade = (values.view(np.uint64) >> _MANTISSA).view(np.int64)
    steps = _binades(dst).steps.take(binade) * values
    return steps.astype(np.int64).astype(np.uint32)


def _codes_of_sums(rule: CastRule, half: int) -> Array:
    dst = rule.dst
    last = dst.inf_code if rule.overflow == "infinity" else dst.nan_code if rule.overflow == "nan" else dst.max_code
    magnitudes = np.where(np.arange(half) > dst.max_code, last, np.arange(half))
    negative = magnitudes | dst.sign_code
    if not dst.has_negative_zero:
        negative[0] = 0
    return np.concatenate([magnitudes, negative]).astype(dst.code_numpy)


def _frozen(table: Array) -> Array:
    # One table serves every thread.
    table.flags.writeable = False
    return table
