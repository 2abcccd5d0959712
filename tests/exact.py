# SPDX-License-Identifier: Apache-2.0
"""The exact model: a cast as rational arithmetic on one number at a time, in Python's Fraction.

Written from the semantics alone, it uses only the dtypes and the resolved Rule of gpucast. Slow and simple on purpose,
because the reference, the host path and the kernels are checked against it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule


@dataclass(eq=False)
class ExactNumber:
    kind: str  # "finite", "infinite" or "nan"
    negative: bool
    magnitude: Fraction = Fraction(0)
    #: Rounded magnitudes by destination, since many rules round alike.
    memo: dict[Any, int] = field(default_factory=dict)


def decode(dtype: DType, code: int) -> ExactNumber:
    """The number that a code of a dtype represents."""
    if dtype.family == "bool":
        return ExactNumber("finite", False, Fraction(int(code != 0)))
    negative = bool(dtype.sign_bits and code >> (dtype.bits - 1) & 1)
    if dtype.family == "int":
        value = code - (1 << dtype.bits) if negative else code
        return ExactNumber("finite", negative, Fraction(abs(value)))
    rest = code & ((1 << (dtype.bits - dtype.sign_bits)) - 1)
    exponent, mantissa = divmod(rest, 1 << dtype.mantissa_bits)
    top = (1 << dtype.exponent_bits) - 1
    if dtype.specials == "nan_ff" and code == 0xFF:
        return ExactNumber("nan", False)
    if dtype.specials == "fnuz" and negative and rest == 0:
        return ExactNumber("nan", False)
    if dtype.specials == "fn" and rest == (1 << (dtype.bits - 1)) - 1:
        return ExactNumber("nan", negative)
    if dtype.specials == "ieee" and exponent == top:
        return ExactNumber("nan" if mantissa else "infinite", negative)
    if exponent == 0 and dtype.family == "float":
        return ExactNumber("finite", negative, mantissa * Fraction(2) ** (1 - dtype.bias - dtype.mantissa_bits))
    fraction = 1 + Fraction(mantissa, 1 << dtype.mantissa_bits)
    return ExactNumber("finite", negative, fraction * Fraction(2) ** (exponent - dtype.bias))


@lru_cache(maxsize=4)
def numbers(dtype: DType) -> tuple[ExactNumber, ...]:
    """Every code of a dtype of 16 bits or fewer, decoded once."""
    return tuple(decode(dtype, code) for code in range(2 if dtype.family == "bool" else 1 << dtype.bits))


def cast_codes(codes: Any, rule: CastRule, words: Any = None) -> list[int]:
    """The destination codes of source codes (ints); for stochastic rounding of a random word for each."""
    codes = [int(code) for code in codes]
    if rule.rounding == "stochastic":
        return [to_float(decode(rule.src, code), rule, int(word)) for code, word in zip(codes, words, strict=True)]
    if rule.src is rule.dst:
        return [int(code != 0) for code in codes] if rule.src.family == "bool" else codes
    if rule.src.bits <= 16:
        table = numbers(rule.src)
        return [cast(table[code], rule) for code in codes]
    return [cast(decode(rule.src, code), rule) for code in codes]


def cast(x: ExactNumber, rule: CastRule) -> int:
    """One number into a code of rule.dst."""
    dst = rule.dst
    if dst.family == "bool":
        return int(x.kind != "finite" or x.magnitude != 0)
    if dst.family == "int":
        return to_int(x, rule)
    if dst.family == "e8m0":
        return to_e8m0(x, rule)
    return to_float(x, rule)


def to_int(x: ExactNumber, rule: CastRule) -> int:
    bits = rule.dst.bits
    lowest, highest = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if rule.dst.sign_bits else (0, (1 << bits) - 1)
    if x.kind == "nan":
        return 0
    if x.kind == "infinite":
        value = 0 if rule.overflow == "wrap" else (lowest if x.negative else highest)
    else:
        value = x.memo.get(rule.rounding)
        if value is None:
            # Python's round takes ties to even.
            value = {
                "ties_to_even": round,
                "ties_to_away": lambda number: math.floor(number + Fraction(1, 2)),
                "toward_zero": math.floor,
            }[rule.rounding](x.magnitude)
            x.memo[rule.rounding] = value
        value = -value if x.negative else value
        if rule.overflow == "saturate":
            value = min(max(value, lowest), highest)
    return value % (1 << bits)


def floor_log2(magnitude: Fraction) -> int:
    k = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return k if Fraction(2) ** k <= magnitude else k - 1


def to_e8m0(x: ExactNumber, rule: CastRule) -> int:
    saturate = rule.overflow == "saturate"
    if x.kind == "nan":
        return 0xFF
    if x.negative and (x.kind == "infinite" or x.magnitude != 0):
        return 0x00 if saturate else 0xFF
    if x.kind == "infinite":
        return 0xFE if saturate else 0xFF
    key = (rule.dst, rule.round_mode)
    code = x.memo.get(key)
    if code is None:
        code = x.memo[key] = e8m0_exponent(x.magnitude, rule.round_mode)
    if code < 0:
        return 0x00 if saturate else 0xFF
    if code > 254:
        return 0xFE if saturate else 0xFF
    return code


def e8m0_exponent(magnitude: Fraction, mode: str) -> int:
    """The rounded code; -1 for what is below 2^-127 and 255 for what is above 2^127."""
    if magnitude < Fraction(2) ** -127:
        return -1
    if magnitude > Fraction(2) ** 127:
        return 255
    k = floor_log2(magnitude)
    power = Fraction(2) ** k
    if mode == "up":
        k += magnitude != power
    elif mode == "nearest":
        k += magnitude >= power * Fraction(3, 2)
    return k + 127


def round_magnitude(magnitude: Fraction, dtype: DType, away: bool = False) -> int:
    """The nearest value as a code, ties to even, or `away` from zero, with no upper limit on the exponent."""
    if magnitude == 0:
        return 0
    lowest = 1 - dtype.bias
    exponent = max(floor_log2(magnitude), lowest)
    steps = magnitude / Fraction(2) ** (exponent - dtype.mantissa_bits)
    whole = math.floor(steps + Fraction(1, 2)) if away else round(steps)
    return ((exponent - lowest) << dtype.mantissa_bits) + whole


def round_directed(magnitude: Fraction, negative: bool, dtype: DType, rounding: str, largest: int) -> int:
    """The neighbour in a direction as a code; only away from zero is there one beyond the largest number."""
    if magnitude == 0:
        return 0
    lowest = 1 - dtype.bias
    exponent = max(floor_log2(magnitude), lowest)
    steps = magnitude / Fraction(2) ** (exponent - dtype.mantissa_bits)
    away = rounding == ("toward_negative" if negative else "toward_positive")
    whole = math.ceil(steps) if away else math.floor(steps)
    if rounding == "to_odd" and whole != steps and whole % 2 == 0:
        whole += 1
    code = ((exponent - lowest) << dtype.mantissa_bits) + whole
    return code if away else min(code, largest)


def round_at_random(magnitude: Fraction, dtype: DType, word: int) -> int:
    """The value below or above as a code, with no upper limit on the exponent."""
    if magnitude == 0:
        return 0
    lowest = 1 - dtype.bias
    exponent = max(floor_log2(magnitude), lowest)
    steps = magnitude / Fraction(2) ** (exponent - dtype.mantissa_bits)
    below = math.floor(steps)
    above = math.floor((steps - below) * 2**32) + word >= 2**32
    return ((exponent - lowest) << dtype.mantissa_bits) + below + above


def to_float(x: ExactNumber, rule: CastRule, word: int | None = None) -> int:
    dtype = rule.dst
    width = dtype.bits - dtype.sign_bits
    # A type without a sign has the magnitude.
    negative = x.negative and dtype.sign_bits == 1
    sign = int(negative) << width
    top = ((1 << dtype.exponent_bits) - 1) << dtype.mantissa_bits
    last = (1 << width) - 1
    largest = {"ieee": top - 1, "fn": last - 1, "nan_ff": last - 1, "fnuz": last, "none": last}[dtype.specials]
    nan = {"ieee": sign | top | 1 << (dtype.mantissa_bits - 1), "fn": sign | last, "nan_ff": last, "fnuz": 1 << width}
    if x.kind == "nan":
        return nan[dtype.specials] if dtype.specials in nan else (1 << width) ^ sign
    if x.kind == "infinite":
        if rule.infinity_is_nan:
            return nan[dtype.specials]
        code = largest + 1
    elif word is not None:
        code = round_at_random(x.magnitude, dtype, word)
    elif rule.rounding == "ties_to_away":
        code = round_magnitude(x.magnitude, dtype, away=True)
    elif rule.rounding != "ties_to_even":
        code = round_directed(x.magnitude, negative, dtype, rule.rounding, largest)
    else:
        cached = x.memo.get(dtype)
        if cached is None:
            cached = x.memo[dtype] = round_magnitude(x.magnitude, dtype)
        code = cached
    if code > largest:
        if rule.overflow == "saturate":
            return sign | largest
        return sign | top if rule.overflow == "infinity" else nan[dtype.specials]
    if code == 0 and dtype.specials == "fnuz":
        return 0
    return sign | code
