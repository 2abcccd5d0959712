# SPDX-License-Identifier: Apache-2.0
"""The required result of a cast as a term. It is written from the meaning of casts, apart from the kernels and the
reference.

For types of 8 bits or fewer the term compares with thresholds, which are exact rationals. For the IEEE types it is the
rounding of SMT-LIB's floating point. For integers it shifts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, resolve
from tests.proof import terms as t
from tests.proof.nearest import nearest, neighbours, powers, rounded, value
from tests.proof.terms import SINGLE, TWICE, Format, Term, const, part

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


@dataclass(frozen=True)
class Number:
    """A source as a number. `size` is its magnitude, of a float as a code without its sign."""

    src: DType
    code: Term
    size: Term
    negative: Term
    nan: Term
    infinite: Term

    @property
    def zero(self) -> Term:
        none = const(0, 1)
        return none if self.src.family == "e8m0" else t.eq(self.size, const(0, self.size.width))


def specification(rule: CastRule, code: Term, word: Term | None = None) -> Term:
    """The code of the result. `code` is the source's code; `word` is the random word of 32 bits."""
    src, dst = rule.src, rule.dst
    if src.family == "bool":
        code = t.zext(t.invert(t.eq(code, const(0, 8))), 8)
    if src is dst:
        return code
    x = _number(src, code)
    if dst.family == "bool":
        return t.zext(t.bitwise("or", t.invert(x.zero), x.nan), 8)
    if dst.family == "int":
        return _to_int(x, rule)
    if dst.family == "e8m0":
        return _to_e8m0(x, rule)
    return _to_float(x, rule, word)


def scaled(rule: CastRule, code: Term, scale: Term, word: Term | None = None) -> Term:
    """The result for the source times `scale`, a DOUBLE, rounded to DOUBLE. NaN keeps its sign; infinity times 0 is a
    NaN without one. `rule` is the rule that `gpucast.core.rule.resolve` returns.
    """
    x = specification(resolve(rule.src, _DOUBLE), code)
    product = t.arithmetic("fmul", 64, (x, scale), TWICE, "rn")
    sign = t.bitwise("and", t.is_nan(x, TWICE), part(x, 63, 1))
    nan = t.bitwise("or", t.is_nan(x, TWICE), t.is_nan(product, TWICE))
    product = t.ite(nan, t.join((const(_DOUBLE.nan_code, 63), sign)), product)
    return specification(replace(rule, src=_DOUBLE), product, word)


def largest(src: DType, codes: Iterable[Term]) -> Term:
    """The largest magnitude as the code of a FLOAT: NaN if any element is NaN, 0 for no elements."""
    found = const(0, 32)
    for code in codes:
        size = t.zext(t.magnitude(specification(resolve(src, _FLOAT), code)), 32)
        size = t.ite(t.is_nan(size, SINGLE), const(_FLOAT.nan_code, 32), size)
        found = t.ite(t.ult(found, size), size, found)
    return found


def not_finite(src: DType, codes: Iterable[Term]) -> Term:
    """Whether any element is infinite or NaN."""
    numbers = [_number(src, code) for code in codes]
    return t.invert(t.conj(*(t.invert(t.bitwise("or", x.nan, x.infinite)) for x in numbers)))


def random_word(seed: Term, place: int) -> Term:
    """The random word at a place in the sequence of `seed` (64 bits): Philox4x32-10 of Salmon et al., SC 2011."""
    block, lane = divmod(place, 4)
    a, b, c, d = const(block, 32), const(block >> 32, 32), const(0, 32), const(0, 32)
    for turn in range(10):
        of_a, of_c = (t.mul(t.zext(x, 64), const(factor, 64)) for x, factor in ((a, 0xD2511F53), (c, 0xCD9E8D57)))
        keys = (
            t.add(part(seed, 32 * i, 32), const(turn * step, 32)) for i, step in enumerate((0x9E3779B9, 0xBB67AE85))
        )
        high = [
            t.bitwise("xor", t.bitwise("xor", part(product, 32, 32), x), key)
            for product, x, key in zip((of_c, of_a), (b, d), keys, strict=True)
        ]
        a, b, c, d = high[0], part(of_c, 0, 32), high[1], part(of_a, 0, 32)
    return (a, b, c, d)[lane]


def _number(src: DType, code: Term) -> Number:
    none = const(0, 1)
    if not src.is_float:
        negative = part(code, src.bits - 1, 1) if src.signed else none
        return Number(src, code, t.ite(negative, t.negate(code), code), negative, none, none)
    size = part(code, 0, src.bits - src.sign_bits)
    sign = part(code, src.bits - 1, 1) if src.signed else none
    infinite = t.eq(size, const(src.inf_code, size.width)) if src.has_inf else none
    if src.specials == "fnuz":
        nan = t.eq(code, const(src.nan_code, src.bits))
    elif src.has_nan:
        nan = t.ult(const(src.inf_code if src.has_inf else src.max_code, size.width), size)
    else:
        nan = none
    if not src.nan_is_signed:
        sign = t.bitwise("and", sign, t.invert(nan))
    return Number(src, code, size, sign, nan, infinite)


def _parts(x: Number) -> tuple[Term, Term]:
    """The significand of a finite number and the exponent of its lowest bit, in 16 bits with a sign."""
    src = x.src
    if not src.is_float:
        return x.size, const(0, 16)
    digits = src.mantissa_bits
    field = t.zext(part(x.size, digits, src.exponent_bits), 16)
    lowest = 0 if src.family == "e8m0" else 1
    normal = const(1, 1) if lowest == 0 else t.invert(t.eq(field, const(0, 16)))
    exponent = t.sub(t.ite(normal, field, const(lowest, 16)), const(src.bias + digits, 16))
    return t.join((*((part(x.size, 0, digits),) if digits else ()), normal)), exponent


def _to_int(x: Number, rule: CastRule) -> Term:
    """The conversion to an integer in fixed point. The field has room for every shift to the left up to the width of
    the destination plus one; a longer shift is beyond the limits anyway, or leaves zeros in the bits that count.
    """
    src, dst = rule.src, rule.dst
    significand, exponent = _parts(x)
    width = significand.width + dst.bits + 1
    wide = t.zext(significand, width)
    if src.is_float:
        left = _at_most(exponent, dst.bits + 1, width)
        right = _at_most(t.negate(exponent), significand.width + 1, width)
        whole = t.shift("lshr", wide, right)
        if rule.rounding != "toward_zero":
            rest = t.sub(wide, t.shift("shl", whole, right))
            half = t.shift("lshr", t.shift("shl", const(1, width), right), const(1, width))
            tie = t.eq(rest, half)
            if rule.rounding == "ties_to_even":
                tie = t.bitwise("and", tie, part(whole, 0, 1))
            whole = t.add(whole, t.zext(t.bitwise("or", t.ult(half, rest), tie), width))
        wide = t.ite(part(exponent, 15, 1), whole, t.shift("shl", wide, left))
    code = part(t.ite(x.negative, t.negate(wide), wide), 0, dst.bits)
    if rule.overflow == "saturate":
        largest, lowest = int(dst.max), -int(dst.min)
        over = t.ult(t.ite(x.negative, const(lowest, width), const(largest, width)), wide)
        limit = t.ite(x.negative, const(-lowest, dst.bits), const(largest, dst.bits))
        code = t.ite(t.bitwise("or", over, x.infinite), limit, code)
        return t.ite(x.nan, const(0, dst.bits), code)
    return t.ite(t.bitwise("or", x.nan, x.infinite), const(0, dst.bits), code)


def _at_most(count: Term, most: int, width: int) -> Term:
    limit = const(most, count.width)
    return t.resize(t.ite(t.ult(count, limit), count, limit), width)


def _to_e8m0(x: Number, rule: CastRule) -> Term:
    dst, saturate = rule.dst, rule.overflow == "saturate"
    low, high = (0, dst.max_code) if saturate else (dst.nan_code, dst.nan_code)
    code = t.search(x.size, powers(x.src, dst, rule.round_mode), [low, *range(dst.max_code + 1), high], 8)
    code = t.ite(t.conj(x.negative, t.invert(x.zero)), const(low, 8), code)
    return t.ite(x.nan, const(dst.nan_code, 8), code)


def _to_float(x: Number, rule: CastRule, word: Term | None) -> Term:
    """Round a magnitude, then add the sign and handle infinity and NaN."""
    dst = rule.dst
    width = dst.bits - dst.sign_bits
    over = {
        "saturate": dst.max_code,
        "infinity": dst.inf_code if dst.has_inf else 0,
        "nan": dst.nan_code if dst.has_nan else 0,
    }[rule.overflow]
    signless = not dst.signed or (rule.overflow == "nan" and not dst.nan_is_signed)
    beyond = _beyond(dst)
    past = const(beyond, dst.bits)
    if rule.rounding == STOCHASTIC:
        assert word is not None
        size = _at_random(x, dst, word)
    elif rule.rounding not in ("ties_to_even", "ties_to_away"):
        size = _directed(x, rule)
        past = past if dst.bits <= 8 else const(dst.inf_code, dst.bits)
    elif dst.bits <= 8:
        size = nearest(x.size, x.src, dst, beyond, dst.bits, rule.rounding == "ties_to_away")
    else:
        size = t.zext(_ieee(x, dst, "rn" if rule.rounding == "ties_to_even" else "ra"), dst.bits)
        past = const(dst.inf_code, dst.bits)
    too_large = t.bitwise("or", t.invert(t.ult(size, past)), x.infinite)
    sign = x.negative
    if not dst.has_negative_zero:
        sign = t.bitwise("and", sign, t.invert(t.eq(size, const(0, dst.bits))))
    code = t.join((part(size, 0, width), sign)) if dst.signed else size
    above = const(over, dst.bits) if signless else t.join((const(over, width), x.negative))
    code = t.ite(too_large, above, code)
    if rule.infinity_is_nan:
        code = t.ite(x.infinite, const(dst.nan_code, dst.bits), code)
    if not dst.has_nan:
        nan = t.join((const(0, width), t.invert(x.negative)))
    elif dst.nan_is_signed:
        nan = t.join((const(dst.nan_code, width), x.negative))
    else:
        nan = const(dst.nan_code, dst.bits)
    return t.ite(x.nan, nan, code)


def _beyond(dst: DType) -> int:
    """What stands for a magnitude above the largest one: a word that is none."""
    return 1 << (dst.bits - 1) if dst.signed else dst.max_code + 1


def _directed(x: Number, rule: CastRule) -> Term:
    """One of the two neighbours of a magnitude."""
    dst = rule.dst
    if dst.bits <= 8:
        below, above = neighbours(x.size, x.src, dst, _beyond(dst), dst.bits)
    else:
        below, above = (t.zext(_ieee(x, dst, mode), dst.bits) for mode in ("rz", "rp"))
    if rule.rounding == "to_odd":
        # Beyond the largest number there is none, whatever its last bit.
        inside = t.invert(t.eq(below, const(dst.max_code, dst.bits)))
        return t.bitwise("or", below, t.zext(t.conj(inside, t.invert(t.eq(below, above))), dst.bits))
    negative = x.negative if dst.signed else const(0, 1)
    away = {"toward_zero": const(0, 1), "toward_positive": t.invert(negative), "toward_negative": negative}
    return t.ite(away[rule.rounding], above, below)


def _ieee(x: Number, dst: DType, mode: str) -> Term:
    """The magnitude in FLOAT16, BFLOAT16, FLOAT or DOUBLE, without its sign, rounded by SMT-LIB's `mode`."""
    src, to = x.src, (dst.exponent_bits, dst.mantissa_bits + 1)
    if src.is_float and src.bits <= 8:
        memory = _codes(src, dst, mode)
        bytes_of = (dst.bits // 8).bit_length() - 1
        at = t.zext(t.join((const(0, bytes_of), x.size)), 32)
        return part(t.arithmetic("lookup", dst.bits, (at,), 0, memory), 0, dst.bits - 1)
    if not src.is_float:
        found = t.arithmetic("from_int", dst.bits, (x.size,), False, to, mode)
    else:
        source: Format = (src.exponent_bits, src.mantissa_bits + 1)
        found = t.arithmetic("convert", dst.bits, (t.zext(x.size, src.bits),), source, to, mode)
    return part(found, 0, dst.bits - 1)


@lru_cache(maxsize=64)
def _codes(src: DType, dst: DType, mode: str) -> bytes:
    """The codes, in an IEEE type, of all magnitudes of a narrow float."""
    numbers = (value(src, size) for size in range(1 << (src.bits - src.sign_bits)))
    codes = (0 if number is None else rounded(number, dst, mode) for number in numbers)
    return b"".join(code.to_bytes(dst.bits // 8, "little") for code in codes)


def _at_random(x: Number, dst: DType, word: Term) -> Term:
    """The magnitude in steps of the destination with 32 fraction bits, plus the random word, rounded down."""
    significand, exponent = _parts(x)
    digits, width = dst.mantissa_bits, significand.width
    # The significand's top bit at bit `width` - 1, and the exponent of this bit.
    ahead = t.clz(significand, 16)
    top = t.add(exponent, t.sub(const(width - 1, 16), ahead))
    lowest = const(1 - dst.bias, 16)
    above = t.ite(t.slt(top, lowest), const(0, 16), t.sub(top, lowest))
    # From the lowest bit's exponent to that of 2^-32 of a step.
    left = t.sub(exponent, t.sub(t.add(t.add(above, lowest), const(-digits, 16)), const(32, 16)))
    room = max(digits + 1, width) + 34
    fixed = t.zext(significand, room)
    right = t.shift("lshr", fixed, _at_most(t.negate(left), room - 1, room))
    steps = t.ite(part(left, 15, 1), right, t.shift("shl", fixed, t.resize(left, room)))
    whole = part(t.add(steps, t.zext(word, room)), 32, digits + 2)
    size = t.add(t.shift("shl", above, const(digits, 16)), t.zext(whole, 16))
    last = const(dst.max_code + 1, 16)
    far = t.slt(const(2 * dst.bias + 1, 16), above)
    zero = t.eq(significand, const(0, width))
    size = t.ite(t.bitwise("or", far, t.invert(t.ult(size, last))), const(_beyond(dst), 16), size)
    return part(t.ite(zero, const(0, 16), size), 0, dst.bits)
