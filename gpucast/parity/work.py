# SPDX-License-Identifier: Apache-2.0
"""Compares many cases in several threads, all of them or as many as a time limit allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from gpucast.parity.backends import CastBackend
from gpucast.parity.cases import Case
from gpucast.parity.compare import CaseResult, codes_of, compare

T = TypeVar("T")

#: The number of random codes from which kernels are compiled with optimisation. For speed that would only pay off with
#: still more codes, but thorough runs should cover what the optimiser does too.
_OPTIMIZE = 1_000_000


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
