# SPDX-License-Identifier: Apache-2.0
"""Comparable times: medians of interleaved batches, with their spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from bench.timing.machine import Machine

#: The least seconds of a batch of calls, because events are accurate to about half a microsecond.
BATCH = 1e-3
#: The fewest samples with meaningful 5th and 95th percentiles.
LEAST = 20
_WARM_UPS = 10
_MOST_CALLS = 20_000

Verdict = Literal["faster", "slower", "same"]


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


def verdict(ours: Times, theirs: Times) -> Verdict:
    """Which is faster; "same" if the intervals from the 5th to the 95th percentile overlap."""
    if ours.p95 < theirs.p5:
        return "faster"
    return "slower" if theirs.p95 < ours.p5 else "same"


@dataclass
class Work:
    """Something to time: `run(i)` enqueues the work on the i-th of `sets` sets of arrays."""

    name: str
    run: Callable[[int], Any]
    sets: int
    #: For work on a stream of its own, which is timed by the host's clock: waits for what a run returned.
    wait: Callable[[Any], object] | None = None
    #: The calls of one run; more than 1 for the launch of a graph.
    calls: int = 1
    #: Runs per batch, number of batches, and the next set.
    runs: int = field(default=1, init=False)
    samples: int = field(default=0, init=False)
    _next: int = field(default=0, init=False)

    def give(self, runs: int) -> Any:
        """Enqueue runs, each on the next set; returns what the last run returned."""
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
        """Wait until all enqueued work is done; `result`: what the last run returned."""
        if self.wait is None:
            machine.synchronize()
        else:
            self.wait(result)


def measure(machine: Machine, works: Sequence[Work], *, samples: int = 100, limit: float = math.inf) -> list[Times]:
    """Time several works in turn (A B C, B C A, ...), so that disturbances of the machine affect all alike.

    Takes `samples` batches of each work, or fewer, but at least LEAST, if they would take more than `limit` seconds.
    Batches on the stream follow each other without waiting, so that no batch includes the latency of a first launch.
    """
    for work in works:
        _prepare(machine, work, samples, limit)
    marks: dict[int, list[tuple[Any, Any]]] = {number: [] for number in range(len(works))}
    batches: dict[int, list[float]] = {number: [] for number in range(len(works))}
    idle = True
    for turn in range(max((work.samples for work in works), default=0)):
        for place in range(len(works)):
            number = (turn + place) % len(works)
            work = works[number]
            if not _takes_part(work, turn, max(other.samples for other in works)):
                continue
            if work.wait is not None:
                batches[number].append(_by_the_host(machine, work))
                idle = True
                continue
            if idle:
                work.give(max(1, work.runs // 4))
                idle = False
            start = machine.record()
            work.give(work.runs)
            marks[number].append((start, machine.record()))
    machine.synchronize()
    for number, pairs in marks.items():
        batches[number] += [machine.seconds(start, end) for start, end in pairs]
    return [Times.of(batches[number], work.runs * work.calls) for number, work in enumerate(works)]


def _takes_part(work: Work, turn: int, turns: int) -> bool:
    """Whether a work has a batch in this turn. Those of works with fewer samples than turns are spread evenly."""
    return (turn + 1) * work.samples // turns > turn * work.samples // turns


def _prepare(machine: Machine, work: Work, samples: int, limit: float) -> None:
    """Warm up, and determine how many runs make a batch."""
    _by_the_host(machine, work)  # The first run may compile.
    work.runs = 1
    one = _by_the_host(machine, work)
    if one < BATCH:
        # One run with its wait is too inaccurate; measure as many as a batch has.
        work.runs = min(max(_WARM_UPS, math.ceil(BATCH / max(one, 1e-9))), _MOST_CALLS)
        one = _by_the_host(machine, work) / work.runs
    else:
        work.runs = min(_WARM_UPS, math.ceil(0.05 / one))
        one = _by_the_host(machine, work) / work.runs
    work.runs = min(math.ceil(BATCH / max(one, 1e-9)), _MOST_CALLS)
    work.samples = int(min(samples, max(limit / (one * work.runs), LEAST)))


def _by_the_host(machine: Machine, work: Work) -> float:
    """Seconds until a batch is done, by the host's clock."""
    machine.synchronize()
    begin = machine.now()
    work.finish(machine, work.give(work.runs))
    return machine.now() - begin
