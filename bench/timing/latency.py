# SPDX-License-Identifier: Apache-2.0
"""The cost of a call on the host, measured over many calls without waiting for their results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.cases.buffers import Sets
from bench.cases.contenders import Contender
from bench.timing.machine import Machine
from bench.timing.times import Times, Work

#: Consecutive calls. A stream's queue holds about 1024 launches before callers have to wait.
CALLS = 1000


@dataclass(frozen=True)
class Latency:
    """Seconds per call: of series of CALLS calls with a wait at the end; and the 99th percentile of single calls."""

    times: Times
    p99: float


def measure_latency(machine: Machine, works: Sequence[Work], loops: int = 20, calls: int = CALLS) -> list[Latency]:
    """Measure series of calls of several works in turn."""
    rows: list[list[float]] = [[] for _ in works]
    for work in works:
        work.give(calls // 10)
    for turn in range(loops):
        for place in range(len(works)):
            number = (turn + place) % len(works)
            machine.synchronize()
            begin = machine.now()
            works[number].finish(machine, works[number].give(calls))
            rows[number].append(machine.now() - begin)
    return [
        Latency(Times.of(batches, calls), _p99(machine, work, calls)) for batches, work in zip(rows, works, strict=True)
    ]


def works_of(contenders: Iterable[Contender], sets: Sets) -> list[Work]:
    """The calls of the contenders that support the pair; those that fail are reported on stderr."""
    works = []
    for one in contenders:
        if not one.supports(sets.src, sets.dst):
            continue
        try:
            run = one.prepare(sets)
            one.wait(run(0))
        except Exception as error:  # A rival may raise anything, and the others go on.
            print(f"bench: the calls of {one.name} are left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        works.append(Work(one.name, run, len(sets.sources), None if one.streamed else one.wait))
    return works


def _p99(machine: Machine, work: Work, calls: int) -> float:
    now, give = machine.now, work.give
    machine.synchronize()
    stamps = [now()]
    result = None
    for _ in range(calls):
        result = give(1)
        stamps.append(now())
    work.finish(machine, result)
    return float(np.percentile(np.diff(stamps), 99))
