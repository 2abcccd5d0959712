# SPDX-License-Identifier: Apache-2.0
"""The second half of the host path's arithmetic lanes: a carrier is stored as the destination's codes.

A carrier is a chunk of NumPy integers, float32 or float64. The destination's family says what happens to it. Quick
lanes that are exact for nearly all numbers look for the others with a reduction, which is cheap, and mend those alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast import host_tables
from gpucast.dtypes import DType, dtype
from gpucast.host_codes import canonical_nan, encode, low_bits
from gpucast.rule import Rule

Array = npt.NDArray[Any]
#: Stores native, contiguous, flat elements (codes or a carrier) as codes of the destination.
Lane = Callable[[Array, Array], None]

_FLOAT = dtype("FLOAT")


def store(carrier: np.dtype[Any], rule: Rule, size: int, chunk: int) -> Lane:
    """The lane from a carrier's dtype to ``rule.dst``, for an array of `size` elements in chunks of at most `chunk`."""
    dst = rule.dst
    if dst.family == "int":
        if carrier.kind != "f":
            return _int_to_int(carrier, rule, chunk)
        if rule.overflow == "saturate" or rule.rounding != "truncate":
            return _encode(rule)
        return _float_to_int(carrier, dst, chunk)
    if dst.bits > 16:
        return _to_wide_float(carrier, rule)
    if carrier.kind != "f" and carrier.itemsize <= 2 and dst.numpy == ml_dtypes.bfloat16:
        # Exact in float32, so ml_dtypes rounds them once; and it does so more quickly than it rounds float32.
        return lambda x, out: np.copyto(out.view(dst.numpy), x, casting="unsafe")
    rule = replace(rule, src=_FLOAT)
    put = _float32_to(rule, size, chunk)
    if carrier == np.float32:
        return put
    load = _to_float32(carrier, dst, chunk)
    return lambda x, out: put(load(x), out)


def _encode(rule: Rule) -> Lane:
    return lambda x, out: np.copyto(out, encode(x.astype(np.float64), rule))


def _where(mask: Array) -> Any:
    """What to index with to reach at least the true places of a mask: everything where there are many."""
    where = np.flatnonzero(mask)
    return slice(None) if where.size * 8 > mask.size else where


# ---- integers ----


def _int_to_int(carrier: np.dtype[Any], rule: Rule, chunk: int) -> Lane:
    dst = rule.dst
    low, high = int(np.iinfo(carrier).min), int(np.iinfo(carrier).max)
    clip = rule.overflow == "saturate" and not (dst.min <= low and high <= dst.max)
    clipped = np.empty(chunk if clip else 0, carrier)

    def lane(x: Array, out: Array) -> None:
        if clip:
            x = np.clip(x, max(low, int(dst.min)), min(high, int(dst.max)), out=clipped[: x.size])
        np.copyto(out, x, casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


@lru_cache(maxsize=1)
def _invalid_gives_minimum() -> bool:
    """True where NaN and floats out of an integer's range convert to its minimum, as on x86."""
    bad = np.array([np.nan, np.inf, -np.inf, 2.0**80, -(2.0**80)] * 13)
    floats, integers = (np.float32, np.float64), (np.int32, np.int64)
    with np.errstate(all="ignore"):
        got = [bad.astype(one).astype(other) == np.iinfo(other).min for one in floats for other in integers]
    return bool(np.all(got))


def _float_to_int(carrier: np.dtype[Any], dst: DType, chunk: int) -> Lane:
    """Truncate and keep the low bits: by way of a signed integer that is wide enough for all but rare numbers."""
    last_place = 23 if carrier == np.float32 else 52
    # int32 is the quicker way, int64 the one with less to mend: nothing at all from float32 to 32 bits or fewer.
    short = (dst.bits == 32 and dst.signed) or (dst.bits <= 8 if carrier == np.float32 else dst.bits == 16)
    integer = np.dtype(np.int32 if short else np.int64)
    minimum, top = np.iinfo(integer).min, 2.0 ** (8 * integer.itemsize - 1)
    on_minimum = _invalid_gives_minimum()

    def exact(bits: int) -> bool:
        # A float of 2^(bits-1) and more is a multiple of its last place there. Where that is a multiple of 2^dst.bits,
        # the low bits are 0, as are those of the minimum that NaN, infinities and all such floats became.
        return on_minimum and dst.bits <= bits - 1 - last_place

    done, done_by_int64 = exact(8 * integer.itemsize), exact(64)
    direct = dst.code_numpy.itemsize == integer.itemsize
    scratch = np.empty(0 if direct else chunk, integer)

    def mend(x: Array, whole: Array) -> None:
        if on_minimum:
            if whole.min() != minimum:
                return
            bad = whole == minimum
        else:
            bad = ~(np.abs(x) < top)
            if not bad.any():
                return
        where = _where(bad)
        whole[where] = x[where].astype(np.int64) if done_by_int64 else low_bits(x[where].astype(np.float64))

    def lane(x: Array, out: Array) -> None:
        whole = out.view(integer) if direct else scratch[: x.size]
        np.copyto(whole, x, casting="unsafe")
        if not done:
            mend(x, whole)
        if not direct:
            np.copyto(out, whole, casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


# ---- FLOAT and DOUBLE ----


def _to_wide_float(carrier: np.dtype[Any], rule: Rule) -> Lane:
    dst = rule.dst

    def lane(x: Array, out: Array) -> None:
        # NumPy rounds integers and float64 once, to nearest even, but keeps the payload of a NaN.
        value = out.view(dst.numpy)
        np.copyto(value, x, casting="unsafe")
        if carrier.kind in "iu":
            return
        if rule.overflow == "saturate":
            np.clip(value, dst.min, dst.max, out=value)
        canonical_nan(out, x if x.itemsize == 4 else value, dst)

    return lane


# ---- floats of 16 bits or fewer, and FLOAT8E8M0: all by way of float32 ----


def _to_float32(carrier: np.dtype[Any], dst: DType, chunk: int) -> Callable[[Array], Array]:
    """Float32 values that round to `dst` as the carrier's numbers do: to nearest, and where that would land on a
    boundary of `dst` from beside it, one step back to the side where the number lies (so rounded to odd there)."""
    nearest = np.empty(chunk, np.float32)
    # Integers beyond 2^24, the only inexact ones, stay out of range.
    harmless = carrier.kind != "f" and (carrier.itemsize <= 2 or (dst.family == "float" and dst.max < 2.0**24))
    scratch = np.empty(0 if harmless else chunk, np.uint32)
    # Numbers of `dst` and the middles between them have these bits clear in float32.
    clear = (1 << (host_tables.dropped_bits(dst) + 1)) - 1

    def load(x: Array) -> Array:
        value = nearest[: x.size]
        np.copyto(value, x, casting="unsafe")
        if harmless:
            return value
        bits = value.view(np.uint32)
        rest = np.bitwise_and(bits, clear, out=scratch[: x.size])
        if rest.min() != 0 or (carrier.kind != "f" and x.min() >= -(2**24) and x.max() <= 2**24):
            return value
        boundary = rest == 0
        where = _where(boundary)
        wanted, got, near = np.abs(_odd_float64(x[where])), np.abs(value[where].astype(np.float64)), bits[where]
        # NaN is neither above nor below. Zero and infinity are boundaries, too, and step back alike.
        above, below = wanted > got, wanted < got
        if isinstance(where, slice):
            above, below = above & boundary, below & boundary
        bits[where] = near + above - below
        return value

    return load


def _odd_float64(x: Array) -> Array:
    """Numbers as float64; 64-bit integers that do not fit are rounded to odd (in units of 2^11), never onto a boundary
    of a narrower type."""
    if x.dtype.kind == "f" or x.itemsize < 8:
        return x.astype(np.float64)
    fits = (x <= 2**53) if x.dtype.kind == "u" else (x <= 2**53) & (x >= -(2**53))
    odd = (x & ~x.dtype.type(0x7FF)) | ((x & x.dtype.type(0x7FF)) != 0).astype(x.dtype) << x.dtype.type(11)
    return np.where(fits, x, odd).astype(np.float64)


def _float32_to(rule: Rule, size: int, chunk: int) -> Lane:
    dst = rule.dst
    if dst.bits <= 8:
        length = 1 << (32 - host_tables.dropped_bits(dst))
        return _encode(rule) if host_tables.too_long(length, size) else _by_leading_bits(rule, chunk)
    if dst.numpy == ml_dtypes.bfloat16:
        return _to_bfloat16(rule, chunk)
    if dst.numpy == np.float16:
        return _to_float16(rule, chunk)
    return _encode(rule)


def _by_leading_bits(rule: Rule, chunk: int) -> Lane:
    table = host_tables.by_leading_bits(rule)
    dropped = host_tables.dropped_bits(rule.dst)
    low = (1 << dropped) - 1
    scratch, index = np.empty(chunk, np.uint32), np.empty(chunk, np.intp)

    def lane(x: Array, out: Array) -> None:
        bits, odd, leading = x.view(np.uint32), scratch[: x.size], index[: x.size]
        # Adding `low` to the dropped bits carries into the last kept bit unless all of them are 0.
        np.bitwise_and(bits, low, out=odd)
        np.add(odd, low, out=odd)
        np.bitwise_or(odd, bits, out=odd)
        np.right_shift(odd, dropped, out=odd)
        np.copyto(leading, odd)
        table.take(leading, out=out, mode="clip")

    return lane


def _to_bfloat16(rule: Rule, chunk: int) -> Lane:
    saturate = rule.overflow == "saturate"
    limit = np.float32(rule.dst.max)
    clipped = np.empty(chunk if saturate else 0, np.float32)

    def lane(x: Array, out: Array) -> None:
        # ml_dtypes rounds float32 once, to nearest even, and gives the quiet NaN with its sign.
        if saturate:
            x = np.clip(x, -limit, limit, out=clipped[: x.size])
        np.copyto(out.view(rule.dst.numpy), x, casting="unsafe")

    return lane


def _to_float16(rule: Rule, chunk: int) -> Lane:
    """NumPy's own conversion is right as well, but two to three times as slow."""
    one, other = np.empty(chunk, np.uint32), np.empty(chunk, np.uint32)
    # NumPy compares two arrays much more quickly than an array and a scalar.
    limits = np.full(chunk, rule.dst.max if rule.overflow == "saturate" else 2.0**16, np.float32)
    smallest_normals = np.full(chunk, 2.0**-14, np.float32)

    def lane(x: Array, out: Array) -> None:
        bits, code, anchor = x.view(np.uint32), one[: x.size], other[: x.size]
        magnitude, power = code.view(np.float32), anchor.view(np.float32)
        np.bitwise_and(bits, 0x7FFFFFFF, out=code)
        np.minimum(magnitude, limits[: x.size], out=magnitude)
        # The power of two below the magnitude, times 2^13: its last place in float32 is the spacing of float16 there,
        # so the processor's own addition rounds the magnitude to a whole number of steps above the anchor.
        np.bitwise_and(code, 0x7F800000, out=anchor)
        np.maximum(power, smallest_normals[: x.size], out=power)
        np.add(anchor, 13 << 23, out=anchor)
        np.add(magnitude, power, out=magnitude)
        np.subtract(code, anchor, out=code)
        # Add the binades below, of 1024 steps each; the anchor's exponent is 126 more than their number.
        np.right_shift(anchor, 13, out=anchor)
        np.add(code, anchor, out=code)
        np.subtract(code, 126 << 10, out=code)
        np.right_shift(bits, 16, out=anchor)
        np.bitwise_and(anchor, 0x8000, out=anchor)
        np.bitwise_or(code, anchor, out=code)
        np.copyto(out, code, casting="unsafe")
        # The steps of a NaN are nonsense, its sign included.
        if np.isnan(x.max()):
            nan = np.flatnonzero(np.isnan(x))
            out[nan] = (bits[nan] >> 16) & rule.dst.sign_code | rule.dst.nan_code

    return lane
