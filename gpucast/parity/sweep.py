# SPDX-License-Identifier: Apache-2.0
"""All 2^32 codes of a source, for one rule.

A cast to a narrow type is piecewise constant in the order of the source's codes: within a binade of the source every
destination code has one interval. Bisection finds where intervals end, so the reference has to cast few codes; a
backend's output is compared with whole intervals. Where a cast truncates to integers that wrap, or is exact, the
results of a binade go up by equal steps, and the reference is asked at the ends of many ranges. Other casts to wide
types, and those that round stochastically, are compared code by code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from gpucast.core.fuse import Random
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule
from gpucast.parity.backends import CastBackend, NDArray
from gpucast.parity.cases import Case
from gpucast.parity.compare import BLOCK, CaseResult, Mismatch, mismatch, run_threads, wanted_codes

#: Elements that a backend casts at a time.
_CHUNK = 1 << 18
#: The number of random codes at which intervals are checked against the reference.
_PROBES = 100_000
#: The reference is asked on both sides of every multiple of this where results go up by equal steps.
_ASKED = 1 << 12
#: The destination codes of so many source codes from the first one on.
Codes = Callable[[int, int], NDArray]


def sweep(
    backend: CastBackend,
    case: Case,
    *,
    threads: int,
    advance: Callable[[int], object] = lambda codes: None,
    seed: int = 0,
) -> CaseResult:
    """Compare every code of a source of 32 bits or fewer, for one rule.

    `advance` is called with the number of codes done since its last call.
    """
    rule, count = case.rule, 1 << case.rule.src.bits
    wanted = intervals(rule, seed) if piecewise_constant(rule) else stairs(rule, seed) if has_stairs(rule) else None
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
            right = _by_block(rule, codes, case.random) if wanted is None else wanted(start, codes.size)
            differs = got != right
            if differs.any():
                wrong += int(np.count_nonzero(differs))
                found.append(mismatch(case, codes, got, int(differs.argmax()), start))
            with lock:
                advance(codes.size)
        return wrong, found

    results = run_threads(work, threads, stopped.set)
    first = min((one for _, found in results for one in found), key=lambda one: one.index, default=None)
    return CaseResult(case, count, sum(wrong for wrong, _ in results), first)


def piecewise_constant(rule: CastRule) -> bool:
    """True if few intervals cover all codes of the source: neither wrapping nor random, to a narrow destination."""
    wraps = rule.dst.family == "int" and rule.overflow == "wrap"
    return rule.dst.bits <= 16 and not wraps and rule.rounding != STOCHASTIC and rule.src is not rule.dst


def intervals(rule: CastRule, seed: int = 0) -> Codes:
    """The codes of a rule by intervals that have one result each, found by bisection within the source's binades.

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
    starts = np.append(starts, count)

    def codes(start: int, count: int) -> NDArray:
        first, last = np.searchsorted(starts, [start, start + count - 1], side="right") - 1
        edges = starts[first : last + 2].clip(start, start + count)
        return np.repeat(values[first : last + 1], np.diff(edges))

    return codes


def has_stairs(rule: CastRule) -> bool:
    """True if results go up by equal steps within a binade: numbers are truncated and wrap, or stay as they are."""
    truncates = rule.dst.family == "int" and rule.overflow == "wrap" and rule.rounding == "toward_zero"
    return rule.src.bits in (16, 32) and rule.src is not rule.dst and (truncates or rule.dst.name == "DOUBLE")


def stairs(rule: CastRule, seed: int = 0) -> Codes:
    """The codes of a rule by ranges in which results go up by a step, each of which stays on 2^shift codes.

    RuntimeError where the reference contradicts them at one of many codes.
    """
    src, count = rule.src, 1 << rule.src.bits
    powers = 1 << np.arange(src.bits, dtype=np.int64)
    if src.is_float:
        # Subnormal numbers have binades of their own; and then NaN, behind infinity.
        edges = np.append(powers[: src.mantissa_bits], src.inf_code + 1)
        edges = np.append(edges, edges + src.sign_code)
    else:
        # A negative power of two is in the binade beyond.
        edges = count - powers + 1
    starts = np.union1d(_binades(rule), edges % count)
    ends = np.append(starts[1:], count)
    values = _by_block(rule, starts)
    steps, shifts = np.zeros_like(values), np.zeros(starts.size, np.uint32)
    for shift in range(src.bits):
        inside = np.flatnonzero((steps == 0) & (starts + (1 << shift) < ends))
        steps[inside] = _by_block(rule, starts[inside] + (1 << shift)) - values[inside]
        shifts[inside] = shift
    mask = values.dtype.type(rule.dst.code_mask)
    sides = np.arange(_ASKED, count, _ASKED)
    probes = np.random.default_rng(seed).integers(0, count, _PROBES)
    asked = np.unique(np.concatenate([[0], ends - 1, sides - 1, sides, probes]))
    at = np.searchsorted(starts, asked, side="right") - 1
    climbed = (asked - starts[at] >> shifts[at]).astype(values.dtype)
    if not np.array_equal((climbed * steps[at] + values[at]) & mask, _by_block(rule, asked)):
        raise RuntimeError(f"parity: the reference's results do not go up by equal steps: {rule}")
    starts = np.append(starts, count)

    def of_range(i: int, start: int, stop: int) -> NDArray:
        begin, end = (int(edge) for edge in starts[i : i + 2])
        climbed = np.arange(max(start, begin) - begin, min(stop, end) - begin, dtype=np.uint32) >> shifts[i]
        results: NDArray = climbed.astype(values.dtype)
        results *= steps[i]
        results += values[i]
        results &= mask
        return results

    def codes(start: int, count: int) -> NDArray:
        first, last = np.searchsorted(starts, [start, start + count - 1], side="right") - 1
        return np.concatenate([of_range(i, start, start + count) for i in range(first, last + 1)])

    return codes


def _binades(rule: CastRule) -> NDArray:
    """The first codes of the ranges in which the source's magnitude changes by at most a factor of two."""
    src, count = rule.src, 1 << rule.src.bits
    if src.is_float:
        return np.arange(0, count, 1 << src.mantissa_bits, dtype=np.int64)
    powers = 1 << np.arange(src.bits, dtype=np.int64)
    return np.unique(np.concatenate([[0], powers, count - powers]))


def _by_block(rule: CastRule, codes: NDArray, random: Random | None = None) -> NDArray:
    """The reference's results for codes (of any integer type), computed in blocks that stay in the cache."""
    result = np.empty(codes.shape, rule.dst.code_numpy)
    for start in range(0, codes.size, BLOCK):
        block = slice(start, start + BLOCK)
        result[block] = wanted_codes(rule, codes[block].astype(rule.src.code_numpy), random, start)
    return result
