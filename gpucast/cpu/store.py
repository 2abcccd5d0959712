# SPDX-License-Identifier: Apache-2.0
"""The second half of the host path's arithmetic lanes: numbers of a compute dtype are stored as destination codes.

The compute dtype is a NumPy integer, float32 or float64. The destination's family selects the lane. Lanes that are
exact for nearly all numbers detect the others by a reduction, which is cheap, and correct only those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule
from gpucast.cpu import tables
from gpucast.cpu.encode import canonical_nan, canonical_quiet_nan, encode
from gpucast.cpu.integers import float_to_int

Array = npt.NDArray[Any]
#: Stores native, contiguous, flat elements (codes, or numbers of the compute dtype) as codes of the destination.
Lane = Callable[[Array, Array], None]

_FLOAT = dtype("FLOAT")
#: The chunk size up to which the number of NumPy calls matters most.
_FEW = 1 << 12


def store(compute_dtype: np.dtype[Any], rule: CastRule, size: int, chunk: int) -> Lane:
    """The lane from the compute dtype to ``rule.dst``, for an array of `size` elements in chunks of at most `chunk`."""
    dst = rule.dst
    if dst.family == "int":
        if compute_dtype.kind != "f":
            return _int_to_int(compute_dtype, rule, chunk)
        if rule.overflow == "saturate" or rule.rounding != "truncate":
            return _encode(rule)
        return float_to_int(compute_dtype, dst, chunk)
    if dst.bits > 16:
        return _to_wide_float(compute_dtype, rule)
    if compute_dtype.kind != "f" and compute_dtype.itemsize <= 2 and dst.numpy == ml_dtypes.bfloat16:
        # Such integers are exact in float32, so ml_dtypes rounds them once, and more quickly than it rounds float32.
        return lambda x, out: np.copyto(out.view(dst.numpy), x, casting="unsafe")
    if compute_dtype != np.float32 and dst.numpy == ml_dtypes.bfloat16:
        return _wide_to_bfloat16(compute_dtype, rule, chunk)
    rule = replace(rule, src=_FLOAT)
    put = _float32_to(rule, size, chunk)
    if compute_dtype == np.float32:
        return put
    load = _to_float32(compute_dtype, dst, chunk)
    return lambda x, out: put(load(x), out)


def _encode(rule: CastRule) -> Lane:
    return lambda x, out: np.copyto(out, encode(x.astype(np.float64), rule))


# ---- integers ----


def _int_to_int(compute_dtype: np.dtype[Any], rule: CastRule, chunk: int) -> Lane:
    dst = rule.dst
    low, high = int(np.iinfo(compute_dtype).min), int(np.iinfo(compute_dtype).max)
    clip = rule.overflow == "saturate" and not (dst.min <= low and high <= dst.max)
    clipped = np.empty(chunk if clip else 0, compute_dtype)

    def lane(x: Array, out: Array) -> None:
        if clip:
            x = np.clip(x, max(low, int(dst.min)), min(high, int(dst.max)), out=clipped[: x.size])
        np.copyto(out, x, casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


# ---- FLOAT and DOUBLE ----


@lru_cache(maxsize=8)
def _conversion_quiets(compute_dtype: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """True where conversion makes every NaN quiet, as IEEE 754 requires, in long arrays and for single elements."""
    codes, result = np.dtype(f"uint{8 * compute_dtype.itemsize}"), np.dtype(f"uint{8 * wide.itemsize}")
    # The smallest signalling NaN and the largest one, of both signs.
    infinity, quiet = (np.array(value, compute_dtype).view(codes) for value in (np.inf, np.nan))
    quiet = quiet & ~infinity & (quiet ^ infinity)
    positive = np.array([infinity + 1, infinity | (quiet - 1)], codes)
    signalling = np.concatenate([positive, positive | codes.type(1 << (codes.itemsize * 8 - 1))] * 16)
    wanted = np.array(np.nan, wide).view(result)
    with np.errstate(all="ignore"):
        got = [part.view(compute_dtype).astype(wide).view(result) for part in (signalling, *signalling[:4, None])]
    return all(bool((part & wanted == wanted).all()) for part in got)


def _to_wide_float(compute_dtype: np.dtype[Any], rule: CastRule) -> Lane:
    dst = rule.dst
    quiet = compute_dtype.kind not in "iu" and _conversion_quiets(compute_dtype, dst.numpy)

    def lane(x: Array, out: Array) -> None:
        # NumPy rounds integers and float64 once, to nearest even, but it keeps the payload of a NaN.
        value = out.view(dst.numpy)
        np.copyto(value, x, casting="unsafe")
        if compute_dtype.kind in "iu":
            return
        if rule.overflow == "saturate":
            np.clip(value, dst.min, dst.max, out=value)
        if quiet:
            canonical_quiet_nan(out, dst)
        else:
            canonical_nan(out, value, dst)

    return lane


# ---- floats of 16 bits or fewer, and FLOAT8E8M0: all through float32 ----


def _to_float32(compute_dtype: np.dtype[Any], dst: DType, chunk: int) -> Callable[[Array], Array]:
    """The function that converts to float32 values which round to `dst` as the original numbers do.

    It rounds to nearest. Where that moves a number onto a boundary of `dst`, the result is moved back by one ULP
    towards the number (which is rounding to odd there).
    """
    nearest = np.empty(chunk, np.float32)
    # Only integers beyond 2^24 are inexact in float32, and these are out of the range of a narrow float.
    harmless = compute_dtype.kind != "f" and (
        compute_dtype.itemsize <= 2 or (dst.family == "float" and dst.max < 2.0**24)
    )
    scratch = np.empty(0 if harmless else chunk, np.uint32)
    # In float32 the values of `dst` and their midpoints have these bits clear.
    clear = (1 << (tables.dropped_bits(dst) + 1)) - 1

    def load(x: Array) -> Array:
        value = nearest[: x.size]
        np.copyto(value, x, casting="unsafe")
        if harmless:
            return value
        bits = value.view(np.uint32)
        rest = np.bitwise_and(bits, clear, out=scratch[: x.size])
        if rest.min() != 0 or (compute_dtype.kind != "f" and x.min() >= -(2**24) and x.max() <= 2**24):
            return value
        boundary = rest == 0
        # If there are many boundaries, all elements are treated alike.
        ties = np.flatnonzero(boundary)
        where = slice(None) if ties.size * 8 > x.size else ties
        wanted, got, near = np.abs(_odd_float64(x[where])), np.abs(value[where].astype(np.float64)), bits[where]
        # NaN is neither above nor below. Zero and infinity are boundaries too, and need no special case.
        above, below = wanted > got, wanted < got
        if isinstance(where, slice):
            above, below = above & boundary, below & boundary
        bits[where] = near + above - below
        return value

    return load


def _odd_float64(x: Array) -> Array:
    """Numbers as float64. 64-bit integers that do not fit are rounded to odd (in units of 2^11), which never moves them
    onto a boundary of a narrower type."""
    if x.dtype.kind == "f" or x.itemsize < 8:
        return x.astype(np.float64)
    fits = (x <= 2**53) if x.dtype.kind == "u" else (x <= 2**53) & (x >= -(2**53))
    odd = (x & ~x.dtype.type(0x7FF)) | ((x & x.dtype.type(0x7FF)) != 0).astype(x.dtype) << x.dtype.type(11)
    return np.where(fits, x, odd).astype(np.float64)


def _float32_to(rule: CastRule, size: int, chunk: int) -> Lane:
    dst = rule.dst
    if dst.bits <= 8:
        length = 1 << (32 - tables.dropped_bits(dst))
        return _encode(rule) if tables.too_long(length, size) else _by_leading_bits(rule, chunk)
    if dst.numpy == ml_dtypes.bfloat16:
        return _to_bfloat16(rule, chunk)
    if dst.numpy == np.float16:
        return _to_float16_by_numpy(rule) if chunk <= _FEW else _to_float16(rule, chunk)
    return _encode(rule)


def _by_leading_bits(rule: CastRule, chunk: int) -> Lane:
    table = tables.by_leading_bits(rule)
    count = tables.dropped_bits(rule.dst)
    # Arrays, because NumPy takes longer to convert a Python number than to work on a short array.
    dropped, low = np.array(count, np.uint32), np.array((1 << count) - 1, np.uint32)
    scratch, index = np.empty(chunk, np.uint32), np.empty(chunk, np.intp)
    # Long chunks reuse the same memory, to stay in the cache; in short ones working in place is slower.
    second = np.empty(chunk, np.uint32) if chunk <= _FEW else scratch

    def lane(x: Array, out: Array) -> None:
        bits, odd, other, leading = x.view(np.uint32), scratch[: x.size], second[: x.size], index[: x.size]
        # Adding `low` to the dropped bits carries into the last kept bit unless all of them are 0.
        np.bitwise_and(bits, low, odd)
        np.add(odd, low, other)
        np.bitwise_or(other, bits, odd)
        np.right_shift(odd, dropped, other)
        np.copyto(leading, other)
        table.take(leading, out=out, mode="clip")

    return lane


def _to_bfloat16(rule: CastRule, chunk: int) -> Lane:
    saturate = rule.overflow == "saturate"
    limit = np.float32(rule.dst.max)
    clipped = np.empty(chunk if saturate else 0, np.float32)

    def lane(x: Array, out: Array) -> None:
        # ml_dtypes rounds float32 once, to nearest even, and gives the quiet NaN of the same sign.
        if saturate:
            x = np.clip(x, -limit, limit, out=clipped[: x.size])
        np.copyto(out.view(rule.dst.numpy), x, casting="unsafe")

    return lane


def _wide_to_bfloat16(compute_dtype: np.dtype[Any], rule: CastRule, chunk: int) -> Lane:
    """From float64 and from integers of 32 and 64 bits. Rounding to float32 first is wrong only where it moves a number
    onto a tie of bfloat16: those few are rounded again."""
    put = _to_bfloat16(rule, chunk)
    nearest, scratch, mask = np.empty(chunk, np.float32), np.empty(chunk, np.uint32), np.empty(chunk, bool)
    integer = compute_dtype.kind != "f"

    def lane(x: Array, out: Array) -> None:
        value, rest = nearest[: x.size], scratch[: x.size]
        np.copyto(value, x, casting="unsafe")
        bits = value.view(np.uint32)
        # The lower half of a tie is 0x8000, also of a subnormal one and of the one next to infinity.
        np.left_shift(bits, 16, out=rest)
        where = np.flatnonzero(np.equal(rest, 1 << 31, out=mask[: x.size]))
        if integer and compute_dtype.itemsize == 4:
            # ml_dtypes goes through float32 too; this is quicker than starting from float32.
            np.copyto(out.view(rule.dst.numpy), x, casting="unsafe")
        elif integer:
            # Quicker than ml_dtypes, as there is no NaN. Ties are rounded away from zero here and corrected below.
            np.add(bits, 0x8000, out=rest)
            np.right_shift(rest, 16, out=rest)
            np.copyto(out, rest, casting="unsafe")
        else:
            put(value, out)
        if where.size:
            wanted, got, near = np.abs(_odd_float64(x[where])), np.abs(value[where].astype(np.float64)), bits[where]
            # Move back by one ULP, towards the number. NaN is neither above nor below.
            near += wanted > got
            near -= wanted < got
            codes = np.empty(where.size, np.uint16)
            put(near.view(np.float32), codes)
            out[where] = codes

    return lane


def _to_float16_by_numpy(rule: CastRule) -> Lane:
    saturate, limit = rule.overflow == "saturate", np.float32(rule.dst.max)

    def lane(x: Array, out: Array) -> None:
        np.copyto(out.view(np.float16), np.clip(x, -limit, limit) if saturate else x, casting="unsafe")
        nan = np.isnan(x)
        if np.count_nonzero(nan):
            out[nan] = (x.view(np.uint32)[nan] >> 16) & rule.dst.sign_code | rule.dst.nan_code

    return lane


def _to_float16(rule: CastRule, chunk: int) -> Lane:
    """NumPy's own conversion gives the same results, but takes three times as long for long arrays."""
    one, other, short = np.empty(chunk, np.uint32), np.empty(chunk, np.uint32), np.empty(chunk, np.uint16)
    # np.maximum of two arrays is much quicker than of an array and a scalar.
    smallest_normals = np.full(chunk, 2.0**-14, np.float32).view(np.uint32)
    limit = np.array(rule.dst.max if rule.overflow == "saturate" else 2.0**16, np.float32).view(np.uint32)
    infinity = np.array(np.inf, np.float32).view(np.uint32)
    # Arrays, because NumPy takes longer to convert a Python number.
    magnitude, exponent, shift, half = (np.array(code, np.uint32) for code in (0x7FFFFFFF, 0x7F800000, 13, 16))
    steps = np.array(13 << 23, np.uint32)
    sign, excess = np.array(0x8000, np.uint16), np.array((126 << 10) & 0xFFFF, np.uint16)

    def lane(x: Array, out: Array) -> None:
        bits, code, anchor, signs = x.view(np.uint32), one[: x.size], other[: x.size], short[: x.size]
        np.bitwise_and(bits, magnitude, out=code)
        largest = code.max(initial=0)
        if largest > limit:
            np.minimum(code, limit, out=code)
        # The power of two below the magnitude, times 2^13: its ULP in float32 is the ULP of float16 at the magnitude,
        # so the processor's addition rounds the magnitude to a whole number of ULPs above the anchor.
        np.bitwise_and(code, exponent, out=anchor)
        np.maximum(anchor, smallest_normals[: x.size], out=anchor)
        np.add(anchor, steps, out=anchor)
        total = code.view(np.float32)
        np.add(total, anchor.view(np.float32), out=total)
        # The low bits count the ULPs. Add 1024 for each lower binade; the exponent is 126 more than their number.
        # Only the value modulo 2^16 matters.
        np.right_shift(code, shift, out=anchor)
        np.add(code, anchor, out=code)
        np.copyto(out, code, casting="unsafe")
        np.subtract(out, excess, out=out)
        np.right_shift(bits, half, out=anchor)
        np.copyto(signs, anchor, casting="unsafe")
        np.bitwise_and(signs, sign, out=signs)
        np.bitwise_or(out, signs, out=out)
        if largest > infinity:
            nan = np.flatnonzero(np.isnan(x))
            out[nan] = (bits[nan] >> 16) & rule.dst.sign_code | rule.dst.nan_code

    return lane
