# SPDX-License-Identifier: Apache-2.0
"""The exact meaning of every cast, computed slowly: the specification of record.

It works on values, not on bits: a source code is decoded to the number it stands for; the destination is the sorted
list of its values; rounding is a comparison with the midpoint of two neighbours. Where a list would be too long (FLOAT
and DOUBLE) it counts ULPs of the destination in exact integer arithmetic. It shares only the dtype table with the host
path and the kernels, so that agreement is evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core import strings
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random, resolve_random
from gpucast.core.rounding import STOCHASTIC, Rounding
from gpucast.core.rule import CastRule, Options, OverflowKeyword, RoundMode, resolve
from gpucast.reference.rounding import (
    POWERS,
    floor_log2,
    fractions_to_codes,
    random_in_table,
    to_codes,
    to_whole,
)

NDArray = npt.NDArray[Any]


@exact()
def cast(
    x: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int | None = None,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
    seed: int | None = None,
    offset: int = 0,
) -> NDArray:
    """Cast a NumPy array of any shape; same meaning, types and errors as `gpucast.cast`.

    The result has x's shape, in C order; types that NumPy lacks are ml_dtypes, one element per byte.
    """
    array = np.asarray(x)
    rule = resolve(
        dtype(array.dtype),
        dtype(to, caller="cast: to="),
        Options(saturate, round_mode, opset, rounding, overflow),
    )
    random = resolve_random(rounding, seed, offset)
    return apply(array, rule, None if random is None else random_words(random, array.size))


@exact()
def apply(x: NDArray, rule: CastRule, words: NDArray | None = None) -> NDArray:
    """Cast an array of the dtype ``rule.src``.

    `words`: for stochastic rounding a uint32 for each element, in row-major order.
    """
    src, dst = rule.src, rule.dst
    if src.family == "string":
        return from_strings(x, rule).reshape(x.shape)
    codes = _codes_of(x, src)
    if dst.family == "string":
        texts = [strings.format(src.value(code), src) for code in codes.tolist()]
        result = np.empty(len(texts), dtype=object)
        result[:] = texts
        return result.reshape(x.shape)
    return _to_array(_cast_codes(codes, rule, words), dst).reshape(x.shape)


def _codes_of(x: NDArray, src: DType) -> NDArray:
    """The flat codes of an array. Bits above the code's own are cleared; any nonzero BOOL byte becomes 1."""
    codes = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("=")).reshape(-1).view(src.code_numpy)
    return np.asarray(codes != 0 if src.family == "bool" else codes & src.code_numpy.type(src.code_mask))


def _to_array(codes: NDArray, dst: DType) -> NDArray:
    return codes.astype(dst.code_numpy).view(dst.numpy)


def _cast_codes(codes: NDArray, rule: CastRule, words: NDArray | None) -> NDArray:
    if rule.src is rule.dst:
        return codes
    x = _decode(codes, rule.src)
    if rule.dst.family == "bool":
        return np.asarray((x.magnitude != 0) | x.nan)
    if rule.dst.family == "int":
        return _to_int(x, rule)
    if rule.dst.family == "e8m0":
        return _to_e8m0(x, rule)
    return _to_float(x, rule, words)


# ---- source: codes -> numbers ----


@dataclass(frozen=True)
class Numbers:
    """Exact numbers: uint64 magnitudes for integers, float64 magnitudes (every value fits) for floating types."""

    magnitude: NDArray
    negative: NDArray
    #: NaN keeps its sign in `negative`; its magnitude is 0.
    nan: NDArray

    @property
    def infinite(self) -> NDArray:
        return np.asarray(self.magnitude == np.inf)


def _decode(codes: NDArray, src: DType) -> Numbers:
    code = codes.astype(np.uint64)
    negative = code & np.uint64(src.sign_code) != 0
    if not src.is_float:
        # Two's complement of n bits: a code with the sign bit stands for code - 2^n.
        magnitude = np.where(negative, ~code + np.uint64(1) & np.uint64(src.code_mask), code)
        return Numbers(magnitude, negative, np.zeros(code.shape, bool))
    bits = code & ~np.uint64(src.sign_code)
    exponent = (bits >> np.uint64(src.mantissa_bits)).astype(np.int64)
    mantissa = bits & np.uint64((1 << src.mantissa_bits) - 1)
    hidden = (exponent > 0) | (src.family == "e8m0")
    significand = np.where(hidden, mantissa + np.uint64(1 << src.mantissa_bits), mantissa).astype(np.float64)
    lowest = 0 if src.family == "e8m0" else 1
    special = bits > src.max_code
    scale = np.where(special, 0, np.maximum(exponent, lowest) - src.bias - src.mantissa_bits).astype(np.intc)
    magnitude = np.ldexp(significand, scale)
    if src.has_inf:
        magnitude[bits == src.inf_code] = np.inf
        special = bits > src.inf_code
    if src.specials == "fnuz":
        special = code == src.nan_code
    magnitude[special] = 0.0
    return Numbers(magnitude, negative & (src.nan_is_signed | ~special), special)


# ---- destination: numbers -> codes ----


def _to_int(x: Numbers, rule: CastRule) -> NDArray:
    dst = rule.dst
    magnitude = np.where(x.infinite, 0, x.magnitude)
    huge = x.infinite
    if magnitude.dtype == np.float64:
        magnitude = to_whole(magnitude, rule.rounding)
        huge = huge | (magnitude >= 2.0**64)
        magnitude = np.fmod(magnitude, 2.0**64).astype(np.uint64)
    code = np.where(x.negative, ~magnitude + np.uint64(1), magnitude)
    if rule.overflow == "saturate":
        code[~x.negative & (huge | (magnitude > dst.max))] = dst.max_code
        code[x.negative & (huge | (magnitude > -dst.min))] = dst.sign_code
    return np.asarray(code & np.uint64(dst.code_mask))


def _to_e8m0(x: Numbers, rule: CastRule) -> NDArray:
    dst = rule.dst
    powers, midpoints = _e8m0_table(dst) if x.magnitude.dtype == np.float64 else (POWERS, POWERS + POWERS // 2)
    zero_code = 0 if powers is not POWERS else dst.bias
    # The power at or below the number; numbers below the first power are handled separately.
    below = np.maximum(np.searchsorted(powers, x.magnitude, side="right") - 1, 0)
    if rule.round_mode == "up":
        steps = powers[below] < x.magnitude
    elif rule.round_mode == "down":
        steps = np.zeros(x.magnitude.shape, bool)
    else:
        # For integers the midpoint of 1 would be 1.5, which no integer is; 1 itself is exact.
        steps = (x.magnitude >= midpoints[below]) & (powers[below] < x.magnitude)
    code = below + zero_code + steps
    saturate = rule.overflow == "saturate"
    code[x.magnitude < dst.min] = 0 if saturate else dst.nan_code
    code[x.magnitude > dst.max] = dst.max_code if saturate else dst.nan_code
    code[x.negative & (x.magnitude != 0)] = 0 if saturate else dst.nan_code
    code[x.nan] = dst.nan_code
    return code


def _to_float(x: Numbers, rule: CastRule, words: NDArray | None) -> NDArray:
    dst = rule.dst
    # A type without a sign has the magnitude.
    negative = x.negative & dst.signed
    finite = np.where(x.infinite, 0, x.magnitude)
    if rule.rounding == STOCHASTIC:
        assert words is not None and words.dtype == np.uint32 and words.size == finite.size
        code = random_in_table(finite, words.reshape(-1), dst)
    else:
        code = to_codes(finite, negative, dst, rule.rounding)
    return _finish_float(code, negative, x.nan, x.infinite, rule)


def _finish_float(code: NDArray, negative: NDArray, nan: NDArray, infinite: NDArray, rule: CastRule) -> NDArray:
    """From rounded magnitudes (as codes that continue beyond the largest) to the destination's codes."""
    dst = rule.dst
    sign = np.where(negative, np.uint64(dst.sign_code), np.uint64(0))
    over = (code > dst.max_code) | infinite
    code = code | sign
    if rule.overflow == "saturate":
        code = np.where(over, dst.max_code | sign, code)
    else:
        code = np.where(over, dst.inf_code | sign if rule.overflow == "infinity" else _nan(dst, sign), code)
    if rule.infinity_is_nan:
        code = np.where(infinite, _nan(dst, sign), code)
    if not dst.has_negative_zero:
        code = np.where((code == dst.sign_code) & ~over, 0, code)
    # If the destination has no NaN, NaN becomes the zero of the opposite sign.
    return np.where(nan, _nan(dst, sign) if dst.has_nan else dst.sign_code ^ sign, code)


def _nan(dst: DType, sign: NDArray) -> NDArray:
    return np.asarray(np.uint64(dst.nan_code) | (sign if dst.nan_is_signed else np.uint64(0)))


@lru_cache
@exact()
def _e8m0_table(dst: DType) -> tuple[NDArray, NDArray]:
    powers = np.array([float(dst.value(code)) for code in range(dst.max_code + 1)])
    return powers, 1.5 * powers


# ---- random words ----


def random_words(random: Random, n: int) -> NDArray:
    """The uint32 words of the elements 0 to n - 1."""
    first, skip = divmod(random.offset, 4)
    # The number of a block fits in 63 bits.
    blocks = np.uint64(first) + np.arange(-(-(skip + n) // 4), dtype=np.uint64)
    return _block_words(random.seed, blocks).reshape(-1)[skip : skip + n]


def random_words_at(random: Random, places: NDArray) -> NDArray:
    """The uint32 words of the elements with these indices; ``random.offset`` plus an index is below 2^64."""
    offsets = np.uint64(random.offset) + places.astype(np.uint64)
    every = _block_words(random.seed, offsets // np.uint64(4))
    return np.take_along_axis(every, (offsets % np.uint64(4)).astype(np.intp)[:, None], axis=1).reshape(-1)


def _block_words(seed: int, blocks: NDArray) -> NDArray:
    """The four uint32 words of each block, by its number."""
    low, zero = np.uint64(2**32 - 1), np.zeros(blocks.shape, np.uint64)
    words = philox((blocks & low, blocks >> np.uint64(32), zero, zero), (seed & 2**32 - 1, seed >> 32))
    return np.stack(words, axis=1).astype(np.uint32)


def philox(counter: tuple[NDArray, ...], key: tuple[int, int]) -> tuple[NDArray, ...]:
    """Philox4x32-10: four words for each counter of four, all of them 32 bits in uint64, the low words first.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    # A separate implementation from the host path's, because agreement is evidence only if they share no code.
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = counter
    for turn in range(10):
        one, other = (key[0] + turn * 0x9E3779B9) % 2**32, (key[1] + turn * 0xBB67AE85) % 2**32
        of_a, of_c = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (of_c >> half) ^ b ^ np.uint64(one), of_c & low, (of_a >> half) ^ d ^ np.uint64(other), of_a & low
    return a, b, c, d


# ---- text: one exact fraction at a time ----


def from_strings(x: NDArray, rule: CastRule, first: int = 0) -> NDArray:
    """Text to the flat array that it stands for; errors count elements from `first`."""
    # An iterator, so that of two bad elements always the earlier one is reported.
    texts, dst = strings.texts(x, first), rule.dst
    if dst.family == "string":
        result = np.empty(x.size, dtype=object)
        result[:] = list(texts)
        return result
    if dst.family == "bool":
        return np.array([strings.to_bool(text, i) for i, text in enumerate(texts, first)], dtype=bool)
    if dst.family == "int":
        integers = [strings.to_integer(text, dst, i) & dst.code_mask for i, text in enumerate(texts, first)]
        return _to_array(np.array(integers, dtype=np.uint64), dst)
    numbers = [strings.parse(text, i) for i, text in enumerate(texts, first)]
    negative = np.array([number.negative for number in numbers], dtype=bool)
    nan = np.array([number.kind == "nan" for number in numbers], dtype=bool)
    infinite = np.array([number.kind == "infinite" for number in numbers], dtype=bool)
    if dst.family == "e8m0":
        # Only the position relative to powers of two and their midpoints matters, so a float64 stands in for each.
        stand_ins = np.array([_between_powers(number.magnitude) for number in numbers], dtype=np.float64)
        stand_ins[infinite] = np.inf
        return _to_array(_to_e8m0(Numbers(stand_ins, negative, nan), rule), dst)
    negative &= dst.signed
    codes = fractions_to_codes([number.magnitude for number in numbers], negative, dst, rule.rounding)
    return _to_array(_finish_float(codes, negative, nan, infinite, rule), dst)


def _between_powers(magnitude: Fraction) -> float:
    """A float64 that compares with every power of two, and every 1.5 times a power of two, as the magnitude does."""
    if magnitude == 0:
        return 0.0
    k = floor_log2(magnitude)
    scaled = magnitude / Fraction(2) ** k
    quarters = 4.0 if scaled == 1 else 5.0 if scaled < Fraction(3, 2) else 6.0 if scaled == Fraction(3, 2) else 7.0
    # Beyond FLOAT8E8M0's range it only matters on which side the number is.
    return float(np.ldexp(quarters / 4, min(max(k, -200), 200)))
