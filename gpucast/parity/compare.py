# SPDX-License-Identifier: Apache-2.0
"""Compares a backend's codes with the reference's, bit for bit: one case, or many in several threads, all of them or as
many as a time limit allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gpucast.core.dtypes import DType
from gpucast.core.fuse import Random
from gpucast.core.rule import CastRule
from gpucast.parity import hard_values
from gpucast.parity.backends import CastBackend, CastCodes, NDArray
from gpucast.parity.cases import Case
from gpucast.reference import exact_cast

#: Elements of a block, so few that the reference's scratch arrays stay in the cache.
BLOCK = 1 << 16
#: The fewest elements of an array: several whole tiles and a tail.
_LEAST = 4099
T = TypeVar("T")
#: The number of random codes from which kernels are compiled with optimisation. For speed that would only pay off with
#: still more codes, but thorough runs should cover what the optimiser does too.
_OPTIMIZE = 1_000_000


@dataclass(frozen=True)
class Mismatch:
    """The first element that differs: codes throughout."""

    case: Case
    index: int
    bits: int
    wanted: int
    got: int

    def __str__(self) -> str:
        src, dst = self.case.rule.src, self.case.rule.dst
        return (
            f"{self.case}: index {self.index}, input {describe(src, self.bits)}: "
            f"wanted {describe(dst, self.wanted)}, got {describe(dst, self.got)}"
        )


@dataclass(frozen=True)
class CaseResult:
    """The result of one case."""

    case: Case
    #: Elements cast, and how many of them differ from the reference.
    elements: int
    wrong: int = 0
    first: Mismatch | None = None


def describe(dtype: DType, code: int) -> str:
    """A code in hexadecimal, with its value."""
    bits = f"{code:#0{2 + -(-dtype.bits // 4)}x}"
    return f"{bits} ({dtype.value(code)!r})" if code <= dtype.code_mask else f"{bits} (no code of {dtype.name})"


def codes_of(rule: CastRule, seed: int, share: float, random: int) -> NDArray:
    """The codes to try: all of a source of 16 bits or fewer, or hard values and random ones of a wider source.

    `share`: the share of the destination's midpoints to try if it has thousands.
    """
    src = rule.src
    if src.bits > 16:
        # Every random code comes with one whose magnitude is ordinary.
        return hard_values.codes(src, rule.dst, seed, share, -(-random // 2))
    count = 2 if src.family == "bool" else 1 << src.bits
    return np.resize(np.arange(count, dtype=src.code_numpy), max(count, _LEAST))


def wanted_codes(rule: CastRule, codes: NDArray, random: Random | None = None, start: int = 0) -> NDArray:
    """The reference's result for codes; with stochastic rounding, for the elements from `start` on of an array."""
    words = None
    if random is not None:
        words = exact_cast.random_words(random._replace(offset=random.offset + start), codes.size)
    return np.asarray(exact_cast.apply(codes.view(rule.src.numpy), rule, words).view(rule.dst.code_numpy))


def compare(cast: CastCodes, case: Case, codes: NDArray) -> CaseResult:
    """Cast the codes, as one array, and compare them block by block."""
    got = cast(case, codes)
    wrong, first, random = 0, None, case.random
    for start in range(0, codes.size, BLOCK):
        block = slice(start, start + BLOCK)
        differs = got[block] != wanted_codes(case.rule, codes[block], random, start)
        wrong += int(np.count_nonzero(differs))
        if wrong and first is None:
            first = mismatch(case, codes, got, start + int(differs.argmax()))
    return CaseResult(case, codes.size, wrong, first)


def mismatch(case: Case, codes: NDArray, got: NDArray, index: int, base: int = 0) -> Mismatch:
    """The mismatch at `index` of two arrays. Their first element is number `base` of all elements tried."""
    wanted = wanted_codes(case.rule, codes[index : index + 1], case.random, index)
    return Mismatch(case, base + index, int(codes[index]), int(wanted[0]), int(got[index]))


def run(
    backend: CastBackend,
    cases: Sequence[Case],
    *,
    seed: int,
    share: float,
    random: int,
    threads: int,
    seconds: float | None = None,
    on_result: Callable[[CaseResult], object] = lambda outcome: None,
) -> list[CaseResult]:
    """The results of the cases, in their order; only of the first ones if `seconds` do not suffice for all.

    `share` and `random` say how many codes of a wide source are tried (see `compare.codes_of`). `on_result` is
    called with each result as soon as there is one.
    """
    # Threads suffice, because NumPy and waiting for the compiler release the GIL.
    batches = _Batches(cases, backend.batch, seconds)

    def work() -> dict[int, CaseResult]:
        done = {}
        for start, batch in batches:
            cast = backend.prepare(batch, optimize=random >= _OPTIMIZE)
            pair, codes = None, None
            for number, case in enumerate(batch, start):
                if batches.stopped:
                    break
                if codes is None or pair != (case.rule.src, case.rule.dst):
                    pair, codes = (case.rule.src, case.rule.dst), codes_of(case.rule, seed, share, random)
                done[number] = compare(cast, case, codes)
                with batches.lock:
                    on_result(done[number])
        return done

    outcomes: dict[int, CaseResult] = {}
    for done in run_threads(work, threads, batches.stop):
        outcomes |= done
    return [outcomes[number] for number in sorted(outcomes)]


def run_threads(work: Callable[[], T], threads: int, stop: Callable[[], None]) -> list[T]:
    """The results of `work` in several threads. After an error in one, or Ctrl-C, `stop` is called for the others."""
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        except BaseException:
            stop()
            raise
        return [future.result() for future in futures]


class _Batches:
    """Distributes batches, with the index of their first case, to several threads as long as time remains."""

    def __init__(self, cases: Sequence[Case], size: int, seconds: float | None) -> None:
        self.lock = threading.Lock()
        self.stopped = False
        self._cases, self._size, self._next = cases, size, 0
        self._end = None if seconds is None else time.monotonic() + seconds
        #: The longest time per case of a batch so far.
        self._slowest = 0.0

    def stop(self) -> None:
        self.stopped = True

    def __iter__(self) -> Iterator[tuple[int, Sequence[Case]]]:
        while True:
            begin = time.monotonic()
            with self.lock:
                start, size = self._next, self._affordable(begin)
                batch = self._cases[start : start + size]
                if self.stopped or not batch:
                    return
                self._next += size
            yield start, batch
            with self.lock:
                self._slowest = max(self._slowest, (time.monotonic() - begin) / len(batch))

    def _affordable(self, now: float) -> int:
        """How many cases there is time for; 0 rather than a small batch, which costs more per case."""
        if self._end is None or self._next == 0 or self._slowest * self._size <= self._end - now:
            return self._size
        size = int((self._end - now) / self._slowest) if self._slowest else self._size
        return size if size > self._size // 3 else 0
