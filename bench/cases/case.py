# SPDX-License-Identifier: Apache-2.0
"""A case: several ways to do the same work, each checked, then all timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bench.cases.check import Check
from bench.cases.contenders import COPY, OURS, SAME_RATIO
from bench.timing.machine import Machine
from bench.timing.times import Times, Work, measure

#: Calls whose cost on the host is measured one by one.
_CALLS = 10


@dataclass
class Call(Work):
    """One way to do the work."""

    #: Compares a result of run(0).
    check: Callable[[Any], Check] = lambda result: Check()


@dataclass(frozen=True)
class Case:
    """What is measured side by side. `name` is unique."""

    stage: str
    name: str
    #: Makes the arrays, and returns the bytes that the work moves at least, and the ways by name: each is a function
    #: that prepares a call, whose errors are those of this way alone.
    ways: Callable[[Machine], tuple[float, Mapping[str, Callable[[], Call]]]]
    #: The names of the ways, the quickest of which is 100 %.
    yardstick: tuple[str, ...] = (COPY,)
    #: Batches of each way, and the seconds that they may take.
    samples: int = 50
    limit: float = 1.0
    #: Of a plain cast: names of types, elements, layout.
    src: str = ""
    dst: str = ""
    n: int = 0
    layout: str = ""

    def measure(self, machine: Machine) -> list[Row]:
        """A row for every way: checked, then timed in turn with the others."""
        moved, ways = self.ways(machine)
        rows, works = dict[str, Row](), dict[str, Work]()
        for name, prepare in ways.items():
            row = rows[name] = Row(name, moved, src=self.src, dst=self.dst, n=self.n, layout=self.layout)
            try:
                call = prepare()
                # The first call may compile.
                call.finish(machine, call.run(0))
                host = _host_seconds(machine, call)
                # Last, because it leaves no result that the next one could pass for its own.
                result = call.run(0)
                call.finish(machine, result)
                check = call.check(result)
            except Exception as error:  # A rival may raise anything, and the others go on.
                rows[name] = replace(row, problem=_first_line(error))
                continue
            rows[name] = replace(row, host=host, checked=check.checked, wrong=check.wrong, first=check.first)
            works[name] = call
        try:
            times = measure(machine, list(works.values()), samples=self.samples, limit=self.limit)
        except Exception as error:  # As above; whose fault it was is not known.
            return [replace(row, problem=row.problem or _first_line(error)) for row in rows.values()]
        found = dict(zip(works, times, strict=True))
        best = min((found[name].median for name in self.yardstick if name in found), default=0.0)
        for name, one in found.items():
            rows[name] = replace(rows[name], times=one, share=best / one.median)
        machine.release()
        return list(rows.values())


@dataclass(frozen=True)
class Row:
    """The figures of one way."""

    name: str
    #: Bytes read and written.
    bytes: float = 0.0
    #: Results compared, how many differ, and a description of the first that differs.
    checked: int = 0
    wrong: int = 0
    first: str = ""
    times: Times | None = None
    #: Our speed over that of the yardstick.
    share: float = 0.0
    #: Seconds of a call on the host, with nothing under way.
    host: float = 0.0
    #: Why there are no times.
    problem: str = ""
    src: str = ""
    dst: str = ""
    n: int = 0
    layout: str = ""

    @property
    def speed(self) -> float:
        """Bytes per second; 0 without times."""
        return self.bytes / self.times.median if self.times else 0.0

    @property
    def is_ours(self) -> bool:
        return self.name.startswith(OURS)

    @property
    def is_rival(self) -> bool:
        """Whether it is the call of a rival."""
        return not (self.is_ours or self.name.startswith((COPY, SAME_RATIO)))

    def as_json(self) -> dict[str, Any]:
        """Without what is not known."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Row:
        times = fields.get("times")
        return cls(**{**fields, "times": Times(**times) if times else None})


def failures(rows: list[Row]) -> str:
    """What is wrong with ours, or ""."""
    failed = (row for row in rows if row.is_ours and (row.problem or row.wrong))
    return "; ".join(f"{row.name}: {row.problem or row.first}" for row in failed)


def _host_seconds(machine: Machine, work: Work) -> float:
    """The median cost of some calls on the host, each with an empty queue."""
    found = []
    for _ in range(_CALLS):
        begin = machine.now()
        result = work.run(0)
        found.append(machine.now() - begin)
        work.finish(machine, result)
    return float(np.median(found))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
