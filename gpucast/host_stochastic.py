# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding of NumPy arrays: a magnitude counts steps of the destination with 32 bits behind the point, and a
random word is added there.

Numbers come as float64, which holds all of them but 64-bit integers; of those it holds more bits than count. Types of
16 bits or fewer are looked up: in tables of the two codes to choose from and of the largest word that takes the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast import host_tables
from gpucast.dtypes import DType
from gpucast.host_codes import decode
from gpucast.host_random import Words
from gpucast.random_bits import Random
from gpucast.rule import Rule

Array = npt.NDArray[Any]
#: Rounds native, flat codes into codes, given a word for each.
Lane = Callable[[Array, Array, Array], None]

#: Elements of a chunk: enough that the number of calls costs little, few enough that scratch arrays stay in the cache.
CHUNK = 1 << 15

_HIDDEN, _INFINITY, _MAGNITUDE = (np.uint64(code) for code in (1 << 52, 0x7FF << 52, 2**63 - 1))


def apply(x: Array, rule: Rule, out: Array, random: Random) -> None:
    """Cast numeric `x` (dtype of ``rule.src``) into all of `out` (dtype of ``rule.dst``, x's shape).

    Any strides and byte orders; element i of the row-major order takes word i. `out` must not overlap `x`. Extra memory
    does not grow with `x`. Safe to call from several threads.
    """
    if not x.size:
        return
    words, lane = Words(random, min(x.size, CHUNK)), lane_of(rule, x.size)
    flat = [x.view(_codes(x, rule.src)), out.view(_codes(out, rule.dst))]
    if all(array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative for array in flat):
        codes, result = (array.reshape(-1) for array in flat)
        with np.errstate(all="ignore"):
            for start in range(0, x.size, CHUNK):
                part = codes[start : start + CHUNK]
                lane(part, words(start, part.size), result[start : start + CHUNK])
        return
    chunks = np.nditer(  # type: ignore[call-overload]  # NumPy's stub misspells "contig".
        flat,
        flags=["external_loop", "buffered"],
        op_flags=[["readonly", "contig", "aligned"], ["writeonly", "contig", "aligned"]],
        op_dtypes=[rule.src.code_numpy, rule.dst.code_numpy],
        order="C",
        casting="equiv",
        buffersize=CHUNK,
    )
    start = 0
    with chunks, np.errstate(all="ignore"):
        for codes, result in chunks:
            lane(codes, words(start, codes.size), result)
            start += codes.size


def _codes(x: Array, row: DType) -> np.dtype[Any]:
    kind = row.code_numpy
    return kind if x.dtype.isnative else kind.newbyteorder(x.dtype.byteorder)


def lane_of(rule: Rule, size: int) -> Lane:
    """The lane for an array of `size` elements; NumPy's floating-point errors must be off where it runs."""
    src, dst = rule.src, rule.dst
    if src.bits <= 16 and not host_tables.too_long(1 << max(src.bits, 8), size):
        return _look_up(_table(rule))
    if src.numpy == np.float32 and dst.numpy == ml_dtypes.bfloat16:
        return _upper_half(rule)

    def lane(codes: Array, words: Array, out: Array) -> None:
        values = _float64(codes, src)
        steps, base = _steps(values, dst)
        steps += words
        steps >>= np.uint64(32)
        steps += base
        np.copyto(out, _finished(steps, values, rule), casting="unsafe")

    return lane


def _upper_half(rule: Rule) -> Lane:
    """From FLOAT to BFLOAT16: the bits behind the point are the lower half."""
    row = rule.dst

    def lane(codes: Array, words: Array, out: Array) -> None:
        rounded = words >> np.uint32(16)
        rounded += codes
        rounded >>= np.uint32(16)
        if rule.overflow == "saturate":
            over = rounded & np.uint32(~row.sign_code & row.code_mask) > row.max_code
            rounded[over] = rounded[over] & np.uint32(row.sign_code) | np.uint32(row.max_code)
        # NaN counts as the largest.
        values = codes.view(np.float32)
        if np.isnan(values.max()):
            nan = np.isnan(values)
            rounded[nan] = codes[nan] >> np.uint32(16) & np.uint32(row.sign_code) | np.uint32(row.nan_code)
        np.copyto(out, rounded, casting="unsafe")

    return lane


# ---- tables ----


class _Table(NamedTuple):
    """By the source's code: the largest word with which the number becomes `down`, and what it becomes beyond."""

    limit: Array
    down: Array
    up: Array


@lru_cache(maxsize=host_tables.KEPT)
def _table(rule: Rule) -> _Table:
    codes = np.arange(1 << max(8, rule.src.bits), dtype=rule.src.code_numpy)
    with np.errstate(all="ignore"):
        values = _float64(codes, rule.src)
        steps, base = _steps(values, rule.dst)
        below = base + (steps >> np.uint64(32))
        table = _Table(
            ~steps.astype(np.uint32),
            _finished(below.copy(), values, rule).astype(rule.dst.code_numpy),
            _finished(below + np.uint64(1), values, rule).astype(rule.dst.code_numpy),
        )
    for part in table:
        # One table serves every thread.
        part.flags.writeable = False
    return table


def _look_up(table: _Table) -> Lane:
    def lane(codes: Array, words: Array, out: Array) -> None:
        index = codes.astype(np.intp)
        # No index is out of range; "clip" spares the check that "raise" makes in a pass of its own.
        limit, up = table.limit.take(index, mode="clip"), table.up.take(index, mode="clip")
        table.down.take(index, out=out, mode="clip")
        np.copyto(out, up, where=words > limit)

    return lane


# ---- arithmetic ----


def _float64(codes: Array, row: DType) -> Array:
    """Numbers as float64. 64-bit integers that do not fit lose their last bits, which no destination sees."""
    if row.bits <= 16:
        return decode(codes, row)
    if row.is_float or row.bits == 32:
        return codes.view(row.numpy).astype(np.float64, copy=False)
    negative = codes & np.uint64(row.sign_code) != 0
    magnitude = np.where(negative, ~codes + np.uint64(1), codes)
    np.bitwise_and(magnitude, ~np.uint64(0x7FF), out=magnitude, where=magnitude >= np.uint64(1 << 53))
    values: Array = magnitude.astype(np.float64)
    return np.negative(values, out=values, where=negative)


def _steps(values: Array, row: DType) -> tuple[Array, Array]:
    """How many steps magnitudes lie above a code of the destination, with 32 bits behind the point; and that code."""
    bits = values.view(np.uint64) & _MAGNITUDE
    binades = (bits >> np.uint64(52)).view(np.int64)
    # From the destination's smallest normal numbers.
    binades += row.bias - 1024
    steps = bits & ~_INFINITY
    # Subnormal numbers of float64 are beyond all 32 bits.
    steps |= _HIDDEN
    below = np.negative(binades)
    np.minimum(np.maximum(below, 0, out=below), 63 - 20, out=below)
    below += 20 - row.mantissa_bits
    steps >>= below.view(np.uint64)
    base = np.maximum(binades, 0, out=binades).view(np.uint64)
    base <<= np.uint64(row.mantissa_bits)
    return steps, base


def _finished(code: Array, values: Array, rule: Rule) -> Array:
    """From rounded magnitudes, codes that run on past the largest one, to the codes of their numbers."""
    row = rule.dst
    last = row.inf_code if rule.overflow == "infinity" else row.nan_code if rule.overflow == "nan" else row.max_code
    np.minimum(code, np.uint64(last), out=code)
    bits = values.view(np.uint64)
    sign = bits >> np.uint64(63)
    sign <<= np.uint64(row.bits - 1)
    if rule.infinity_is_nan:
        code[(bits & _MAGNITUDE) == _INFINITY] = row.nan_code
    nan = np.flatnonzero(values != values) if np.isnan(values.max()) else ()
    if len(nan):
        # Nothing stands for NaN in the smallest types: it becomes the zero of the other sign.
        code[nan] = row.nan_code if row.has_nan else 0
        if not row.has_nan:
            sign[nan] ^= np.uint64(row.sign_code)
    if not row.has_negative_zero:
        sign[code == 0] = 0
    code |= sign
    return code
