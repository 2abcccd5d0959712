# SPDX-License-Identifier: Apache-2.0
"""All 2^32 codes of a source, for one rule.

A cast to a narrow type is piecewise constant in the order of the source's codes: within a binade of the source every
destination code has one interval. Bisection finds where intervals end, so the reference has to cast few codes; a
backend's output is compared with whole intervals. Casts to wide types, and those that wrap or round stochastically, are
compared code by code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.parity.backends import Array, CastBackend
from gpucast.parity.cases import Case
from gpucast.parity.compare import BLOCK, CaseResult, Mismatch, mismatch, wanted_codes
from gpucast.parity.work import run_threads

#: Elements that a backend casts at a time.
_CHUNK = 1 << 18
#: The number of random codes at which intervals are checked against the reference.
_PROBES = 100_000


def sweep(
    backend: CastBackend,
    case: Case,
    *,
    threads: int,
    advance: Callable[[int], object] = lambda codes: None,
    seed: int = 0,
    differs_at: Callable[[Mismatch], object] = lambda mismatch: None,
) -> CaseResult:
    """Compare every code of a source of 32 bits or fewer, for one rule.

    `advance` is called with the number of codes done since its last call, `differs_at` at once with the first mismatch
    of each chunk that has one.
    """
    rule, count = case.rule, 1 << case.rule.src.bits
    wanted = intervals(rule, seed) if piecewise_constant(rule) else None
    chunks = iter(range(0, count, _CHUNK))
    lock, stopped = threading.Lock(), threading.Event()

    def work() -> tuple[int, list[Mismatch]]:
        # Every thread has kernels of its own.
        cast = backend.prepare([case], optimize=True)
        wrong, found = 0, []
        while not stopped.is_set():
            with lock:
                start = next(chunks, None)
            if start is None:
                break
            codes = np.arange(start, min(start + _CHUNK, count), dtype=rule.src.code_numpy)
            got = cast(case, codes)
            right = _by_block(rule, codes, case.random) if wanted is None else wanted.codes(start, codes.size)
            differs = got != right
            if differs.any():
                wrong += int(np.count_nonzero(differs))
                found.append(mismatch(case, codes, got, int(differs.argmax()), start))
                with lock:
                    differs_at(found[-1])
            with lock:
                advance(codes.size)
        return wrong, found

    results = run_threads(work, threads, stopped.set)
    first = min((one for _, found in results for one in found), key=lambda one: one.index, default=None)
    return CaseResult(case, count, sum(wrong for wrong, _ in results), first)


def piecewise_constant(rule: CastRule) -> bool:
    """True if few intervals cover all codes of the source: a narrow destination, no wrapping and no stochastic
    rounding."""
    wraps = rule.dst.family == "int" and rule.overflow == "wrap"
    return rule.dst.bits <= 16 and not wraps and rule.rounding != STOCHASTIC and rule.src is not rule.dst


@dataclass(frozen=True)
class Intervals:
    """Intervals of source codes: where each begins, then the end of the last, and the destination code of each."""

    starts: Array
    values: Array

    def codes(self, start: int, count: int) -> Array:
        """The destination codes of the source codes ``start .. start + count - 1``."""
        first, last = np.searchsorted(self.starts, [start, start + count - 1], side="right") - 1
        edges = self.starts[first : last + 2].clip(start, start + count)
        return np.repeat(self.values[first : last + 1], np.diff(edges))


def intervals(rule: CastRule, seed: int = 0) -> Intervals:
    """The intervals of a rule, by bisection within the source's binades.

    RuntimeError where the reference contradicts them at one of many random codes.
    """
    count = 1 << rule.src.bits
    begins = _binades(rule)
    lows, highs = begins, np.append(begins[1:], count) - 1
    found = [begins]
    at_low, at_high = _by_block(rule, lows), _by_block(rule, highs)
    while True:
        # Halve ranges whose ends have different results; of adjacent codes that differ, the second begins an interval.
        keep = at_low != at_high
        lows, highs, at_low, at_high = lows[keep], highs[keep], at_low[keep], at_high[keep]
        narrow = highs - lows == 1
        found.append(highs[narrow])
        lows, highs, at_low, at_high = lows[~narrow], highs[~narrow], at_low[~narrow], at_high[~narrow]
        if lows.size == 0:
            break
        middles = (lows + highs) // 2
        at_middle = _by_block(rule, middles)
        lows, highs = np.concatenate([lows, middles]), np.concatenate([middles, highs])
        at_low, at_high = np.concatenate([at_low, at_middle]), np.concatenate([at_middle, at_high])
    starts = np.sort(np.concatenate(found))
    values = _by_block(rule, starts)
    probes = np.random.default_rng(seed).integers(0, count, _PROBES)
    claimed = values[np.searchsorted(starts, probes, side="right") - 1]
    if not np.array_equal(claimed, _by_block(rule, probes)):
        raise RuntimeError(f"parity: the reference is not constant between the ends of an interval: {rule}")
    return Intervals(np.append(starts, count), values)


def _binades(rule: CastRule) -> Array:
    """The first codes of the ranges in which the source's magnitude changes by at most a factor of two."""
    src, count = rule.src, 1 << rule.src.bits
    if src.is_float:
        return np.arange(0, count, 1 << src.mantissa_bits, dtype=np.int64)
    powers = 1 << np.arange(src.bits, dtype=np.int64)
    return np.unique(np.concatenate([[0], powers, count - powers]))


def _by_block(rule: CastRule, codes: Array, random: Random | None = None) -> Array:
    """The reference's results for codes (of any integer type), computed in blocks that stay in the cache."""
    result = np.empty(codes.shape, rule.dst.code_numpy)
    for start in range(0, codes.size, BLOCK):
        block = slice(start, start + BLOCK)
        result[block] = wanted_codes(rule, codes[block].astype(rule.src.code_numpy), random, start)
    return result
