# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding of NumPy arrays: a magnitude is counted in ULPs of the destination with 32 fractional bits, a
random word is added to the fraction, and the fraction is dropped.

Numbers are converted to float64, which is exact for all but 64-bit integers, and of these keeps more bits than matter.
Sources of 16 bits or fewer are looked up in tables: the two codes to choose from, and the largest word that still
selects the first. Long arrays are cast by compiled code where there is some (`gpucast.cpu.compiled`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.random import Random
from gpucast.core.rule import CastRule
from gpucast.cpu import compiled, lanes, stochastic_steps, tables
from gpucast.cpu.chunks import codes_of, flat, gathered, pairs
from gpucast.cpu.encode import decode
from gpucast.cpu.philox import Words

Array = npt.NDArray[Any]
#: Casts native, flat codes, given a random word for each: ``lane(codes, words, out)``.
Lane = Callable[[Array, Array, Array], None]

#: Elements of a chunk: so many that the overhead of calls is small, so few that scratch arrays stay in the cache.
CHUNK = 1 << 15


def apply(x: Array, rule: CastRule, out: Array, random: Random) -> None:
    """Cast numeric `x` (dtype of ``rule.src``) into all of `out` (dtype of ``rule.dst``, x's shape).

    Any strides and byte orders; element i of the row-major order takes word i. `out` must not overlap `x`. Extra memory
    does not grow with `x`. Safe to call from several threads.
    """
    if not x.size:
        return
    codes, result = codes_of(x, rule.src), codes_of(out, rule.dst)
    # To look for compiled code takes some time in itself.
    cast: compiled.StochasticCast | None = compiled.find(rule, x.nbytes) if x.size > lanes.SHORT else None
    if cast is None:
        by_numpy(codes, rule, result, random)
        return
    views, start = flat(codes, result, row_major=True), 0
    for source, results in gathered(codes, result, CHUNK, row_major=True) if views is None else [views]:
        cast(source, results, random._replace(offset=random.offset + start))
        start += source.size


def by_numpy(codes: Array, rule: CastRule, result: Array, random: Random) -> None:
    """`apply` of codes without compiled code."""
    words, lane = Words(random, min(codes.size, CHUNK)), lane_of(rule, codes.size)
    start = 0
    with np.errstate(all="ignore"):
        for source, results in pairs(codes, result, CHUNK, row_major=True):
            lane(source, words(start, source.size), results)
            start += source.size


def lane_of(rule: CastRule, size: int) -> Lane:
    """The lane for an array of `size` elements; NumPy's floating-point errors must be off where it runs."""
    src, dst = rule.src, rule.dst
    if src.bits <= 16 and not tables.too_long(1 << max(src.bits, 8), size):
        return _look_up(_table(rule))
    if src.numpy == np.float32 and dst.numpy == ml_dtypes.bfloat16:
        return _upper_half(rule)

    put = stochastic_steps.put(rule)
    return lambda codes, words, out: put(_float64(codes, src), words, out)


def _upper_half(rule: CastRule) -> Lane:
    """From FLOAT to BFLOAT16: the lower half of the code is the fraction."""
    dst = rule.dst

    def lane(codes: Array, words: Array, out: Array) -> None:
        rounded = words >> np.uint32(16)
        rounded += codes
        rounded >>= np.uint32(16)
        if rule.overflow == "saturate":
            over = rounded & np.uint32(~dst.sign_code & dst.code_mask) > dst.max_code
            rounded[over] = rounded[over] & np.uint32(dst.sign_code) | np.uint32(dst.max_code)
        # max returns NaN if there is one.
        values = codes.view(np.float32)
        if np.isnan(values.max()):
            nan = np.isnan(values)
            rounded[nan] = codes[nan] >> np.uint32(16) & np.uint32(dst.sign_code) | np.uint32(dst.nan_code)
        np.copyto(out, rounded, casting="unsafe")

    return lane


# ---- tables ----


class _Table(NamedTuple):
    """Indexed by the source's code: words up to `limit` give the code `down`, larger ones the code `up`."""

    limit: Array
    down: Array
    up: Array


@lru_cache(maxsize=tables.KEPT)
def _table(rule: CastRule) -> _Table:
    codes = np.arange(1 << max(8, rule.src.bits), dtype=rule.src.code_numpy)
    with np.errstate(all="ignore"):
        values = _float64(codes, rule.src)
        down, up = (np.empty(codes.size, rule.dst.code_numpy) for _ in range(2))
        put = stochastic_steps.put(rule)
        put(values, np.zeros(codes.size, np.uint32), down)
        put(values, np.full(codes.size, 2**32 - 1, np.uint32), up)
        table = _Table(~stochastic_steps.fractions(values, rule.dst), down, up)
    for part in table:
        # One table serves every thread.
        part.flags.writeable = False
    return table


def _look_up(table: _Table) -> Lane:
    def lane(codes: Array, words: Array, out: Array) -> None:
        index = codes.astype(np.intp)
        # No index is out of range; "clip" avoids the separate pass in which "raise" checks them.
        limit, up = table.limit.take(index, mode="clip"), table.up.take(index, mode="clip")
        table.down.take(index, out=out, mode="clip")
        np.copyto(out, up, where=words > limit)

    return lane


# ---- arithmetic ----


def _float64(codes: Array, src: DType) -> Array:
    """Numbers as float64. Large 64-bit integers lose their last bits, which affect no destination."""
    if src.bits <= 16:
        return decode(codes, src)
    if src.is_float or src.bits == 32:
        return codes.view(src.numpy).astype(np.float64, copy=False)
    negative = codes & np.uint64(src.sign_code) != 0
    magnitude = np.where(negative, ~codes + np.uint64(1), codes)
    np.bitwise_and(magnitude, ~np.uint64(0x7FF), out=magnitude, where=magnitude >= np.uint64(1 << 53))
    values: Array = magnitude.astype(np.float64)
    return np.negative(values, out=values, where=negative)
