# SPDX-License-Identifier: Apache-2.0
"""Rounding of float64 numbers to floats of 16 bits or fewer by counting steps, in few calls of NumPy.

Within a binade a type's numbers are a step apart, a power of two. So a magnitude is a number of steps, exact as
float64, and its code is that number, rounded, plus a number that the binade alone decides. Both come from tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.rule import Rule
from gpucast.cpu.encode import encode

Array = npt.NDArray[Any]
#: ``put(values, words, out)`` stores float64 numbers (flat, contiguous, native) as codes: with a random uint32 word for
#: each, or with None to nearest.
Put = Callable[[Array, Any, Array], None]

#: The bits of a word: steps are counted in as many parts.
_WORD = 32
#: As arrays: NumPy takes longer to convert a number than to work on a short array.
_MANTISSA, _BEYOND, _SHIFT, _BACK = np.array(52, np.uint64), np.array(2.0**50), np.array(_WORD), np.array(2.0**-_WORD)


class _Binades(NamedTuple):
    """Of a type, by the sign and the exponent of a float64, as they lie there."""

    #: 2^-32 steps in 1; negative for negative numbers.
    steps: Array
    #: What is added to a number of steps: the binade's first code less the steps there, and `half` for negative ones.
    base: Array
    #: More than any sum without it. Binades beyond the type's are one, so that sums stay small.
    half: int


@lru_cache(maxsize=64)
def _binades(dst: DType) -> _Binades:
    index = np.arange(1 << 12)
    first, negative = 1 - dst.bias, index >> 11 != 0
    exponent = np.maximum((index & 0x7FF) - 1023, first)
    # The last binade is of infinities and NaN, which are looked up.
    steps = np.ldexp(1.0, np.where(index & 0x7FF == 0x7FF, 0, dst.mantissa_bits + _WORD - exponent))
    last = (dst.max_code >> dst.mantissa_bits) + 1
    base = np.minimum(exponent - first, last) << dst.mantissa_bits
    half = (last + 2 << dst.mantissa_bits) + 1
    signed, base = np.where(negative, -steps, steps), (base + half * negative).astype(np.int64)
    return _Binades(_frozen(signed), _frozen(base), half)


@lru_cache(maxsize=64)
def put(rule: Rule) -> Put:
    """How numbers become codes of ``rule.dst``, whatever the rule's source and rounding are.

    NumPy's floating-point errors must be off where it runs. Safe to call from several threads.
    """
    dst = rule.dst
    steps_in_1, base, half = _binades(dst)
    codes_of_sums = _frozen(_codes_of_sums(rule, half))
    with np.errstate(all="ignore"):
        special = _frozen(encode(np.array([np.inf, -np.inf, np.nan, -np.nan]), rule).astype(dst.code_numpy))

    def lane(values: Array, words: Array, out: Array) -> None:
        binade = (values.view(np.uint64) >> _MANTISSA).view(np.int64)
        # No index is out of range, but for sums of infinities and NaN; "clip" spares the check that "raise" makes.
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
        # No finite number has so many steps.
        if not np.maximum.reduce(steps) < _BEYOND:
            at = np.flatnonzero(~(steps < _BEYOND))
            lost = values[at]
            out[at] = special[2 * np.isnan(lost) + np.signbit(lost)]

    return lane


def fractions(values: Array, dst: DType) -> Array:
    """What numbers are above a step, in units of 2^-32 steps, as uint32; of infinities and NaN anything."""
    binade = (values.view(np.uint64) >> _MANTISSA).view(np.int64)
    steps = _binades(dst).steps.take(binade) * values
    return steps.astype(np.int64).astype(np.uint32)


def _codes_of_sums(rule: Rule, half: int) -> Array:
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
