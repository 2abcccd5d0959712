# SPDX-License-Identifier: Apache-2.0
"""Comparable times: medians of interleaved batches with their spread, and the quickest of interleaved rounds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from bench.timing.machine import Machine

#: The least seconds of a batch of calls, because events are accurate to about half a microsecond.
BATCH = 1e-3
#: The fewest batches with meaningful 5th and 95th percentiles.
LEAST = 20
_WARM_UPS = 10
_MOST_CALLS = 20_000


@dataclass(frozen=True)
class Times:
    """Seconds per call: the median, the 5th and the 95th percentile of `samples` batches of `calls` calls."""

    median: float
    p5: float
    p95: float
    samples: int
    calls: int

    @classmethod
    def of(cls, batches: Sequence[float], calls: int) -> Times:
        p5, median, p95 = (float(value) / calls for value in np.percentile(batches, (5, 50, 95)))
        return cls(median, p5, p95, len(batches), calls)


def verdict(ours: Times, theirs: Times) -> Literal["faster", "slower", "same"]:
    """Which is faster; "same" if the intervals from the 5th to the 95th percentile overlap."""
    if ours.p95 < theirs.p5:
        return "faster"
    return "slower" if theirs.p95 < ours.p5 else "same"


@dataclass
class Work:
    """Something to time: `run(i)` gives the machine the work on the i-th of `sets` sets of arrays."""

    run: Callable[[int], Any]
    sets: int = 1
    #: For work on a stream of its own, which is timed by the host's clock: waits for what a run returned.
    wait: Callable[[Any], object] | None = None
    #: Runs per batch, and the next set.
    runs: int = field(default=1, init=False)
    _next: int = field(default=0, init=False)

    def give(self, runs: int) -> Any:
        """Start so many runs, each on the next set; returns what the last run returned."""
        run, sets, i = self.run, self.sets, self._next
        result = None
        for _ in range(runs):
            result = run(i)
            i += 1
            if i == sets:
                i = 0
        self._next = i
        return result

    def finish(self, machine: Machine, result: Any) -> None:
        """Wait until all work is done; `result`: what the last run returned."""
        if self.wait is None:
            machine.synchronize()
        else:
            self.wait(result)

    def seconds(self, machine: Machine) -> float:
        """Until a batch is done, by the host's clock."""
        machine.synchronize()
        begin = machine.now()
        self.finish(machine, self.give(self.runs))
        return machine.now() - begin


def measure(machine: Machine, works: Sequence[Work], *, samples: int = 100, limit: float = math.inf) -> list[Times]:
    """Time several works in turn (A B C, B C A, ...), so that disturbances of the machine affect all alike.

    Takes `samples` batches of each work, or fewer, but at least LEAST, if a work would take more than `limit` seconds
    on average. Batches on the stream follow each other without waiting, so that no batch includes the latency of a
    first launch.
    """
    spent = sum(_prepared(machine, work) for work in works)
    turns = int(min(samples, max(LEAST, limit * len(works) / spent))) if works else 0
    batches: list[list[float]] = [[] for _ in works]
    events: list[list[tuple[Any, Any]]] = [[] for _ in works]
    idle = True
    for turn in range(turns):
        for place in range(len(works)):
            number = (turn + place) % len(works)
            work = works[number]
            if work.wait is not None:
                batches[number].append(work.seconds(machine))
                idle = True
                continue
            if idle:
                work.give(max(1, work.runs // 4))
                idle = False
            start = machine.record()
            work.give(work.runs)
            events[number].append((start, machine.record()))
    machine.synchronize()
    for taken, pairs in zip(batches, events, strict=True):
        taken += [machine.seconds(start, end) for start, end in pairs]
    return [Times.of(taken, work.runs) for taken, work in zip(batches, works, strict=True)]


def _prepared(machine: Machine, work: Work) -> float:
    """Warm up, and determine how many runs make a batch; returns the seconds of a batch."""
    work.seconds(machine)  # The first run may compile.
    one = work.seconds(machine)
    # One short run with its wait is too inaccurate: measure as many as a batch has.
    most = _MOST_CALLS if one < BATCH else _WARM_UPS
    work.runs = min(max(_WARM_UPS, math.ceil(BATCH / max(one, 1e-9))), most, max(1, math.ceil(0.05 / max(one, 1e-9))))
    one = work.seconds(machine) / work.runs
    work.runs = min(math.ceil(BATCH / max(one, 1e-9)), _MOST_CALLS)
    return one * work.runs


def quickest(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    calls: int = 1,
    turns: int = 1,
    rest: float = 0.0,
    least: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds of a call of each side, on the host: the quickest of so many rounds, or more until `least` seconds have
    passed. In a round each side makes `calls` calls in a row, in a new order each time, so that a neighbour on the
    machine and what is left in the cache disturb all sides alike. A side with threads needs more: `rest` seconds of
    sleep, in which the threads of the other side stop to wait for work on its cores, and several turns, before the
    first of which its own threads sleep, too."""
    best = dict.fromkeys(sides, math.inf)
    order, draw = list(sides), random.Random(3)
    begin, done = time.perf_counter(), 0
    with np.errstate(all="ignore"):
        for call in sides.values():
            call()
        while done < rounds or time.perf_counter() - begin < least:
            done += 1
            draw.shuffle(order)
            for side in order:
                call = sides[side]
                if rest:
                    time.sleep(rest)
                for _ in range(turns):
                    start = clock()
                    for _ in range(calls):
                        call()
                    best[side] = min(best[side], (clock() - start) / calls)
    return best
