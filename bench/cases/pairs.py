# SPDX-License-Identifier: Apache-2.0
"""Measures one pair of types at one size: checks every contender, then times all of them in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bench.cases.buffers import CONTIGUOUS, Layout, Sets, TooLarge, make_sets, moved_bytes
from bench.cases.check import Check, check_head, check_sample, check_windows
from bench.cases.contenders import OURS, Contender, CopyKernel, Ours, Run
from bench.timing.machine import Machine
from bench.timing.times import Times, Work, measure
from gpucast.core.dtypes import DType, dtype

#: How calls reach the GPU: one by one, or as nodes of a CUDA graph, which excludes the cost of a call on the host.
Via = Literal["calls", "graph"]
#: The fewest nodes of a graph.
_NODES = 20

#: Commonly used pairs: storage to arithmetic and back, quantising, images, indices; and a pair of each two widths.
COMMON = tuple(
    (dtype(src), dtype(dst))
    for src, dst in (
        ("FLOAT", "FLOAT16"),
        ("FLOAT16", "FLOAT"),
        ("FLOAT", "BFLOAT16"),
        ("BFLOAT16", "FLOAT"),
        ("FLOAT16", "BFLOAT16"),
        ("FLOAT", "FLOAT8E4M3FN"),
        ("FLOAT8E4M3FN", "FLOAT"),
        ("BFLOAT16", "FLOAT8E5M2"),
        ("FLOAT8E4M3FN", "FLOAT16"),
        ("FLOAT8E5M2", "FLOAT8E4M3FN"),
        ("FLOAT", "INT8"),
        ("INT8", "FLOAT"),
        ("UINT8", "FLOAT16"),
        ("UINT8", "BOOL"),
        ("INT8", "UINT8"),
        ("INT64", "INT32"),
        ("INT32", "FLOAT"),
        ("DOUBLE", "FLOAT"),
        ("FLOAT", "DOUBLE"),
        ("INT4", "FLOAT16"),
        ("FLOAT", "INT4"),
        ("BFLOAT16", "FLOAT4E2M1"),
    )
)


@dataclass(frozen=True)
class Measurement:
    """One contender's figures for a pair, a size and a layout."""

    src: str
    dst: str
    n: int
    layout: str
    via: Via
    contender: str
    #: Bytes read and written.
    bytes: float
    #: Results compared with the reference, how many differ, and a description of the first that differs.
    checked: int = 0
    wrong: int = 0
    first: str = ""
    #: Sets of arrays that the calls rotated through, and whether they exceed the cache.
    sets: int = 0
    cold: bool = False
    times: Times | None = None
    #: Why there are no times.
    problem: str = ""

    @property
    def speed(self) -> float:
        """Bytes per second; 0 without times."""
        return self.bytes / self.times.median if self.times else 0.0

    @property
    def is_ours(self) -> bool:
        return self.contender.startswith(OURS)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        times = fields.get("times")
        return cls(**{**fields, "times": None if times is None else Times(**times)})


class Pairs:
    """Measures pairs on one machine, and checks each contender only once per pair."""

    def __init__(self, machine: Machine, contenders: Sequence[Contender]) -> None:
        self.machine = machine
        self.contenders = contenders
        self._checks: dict[tuple[str, str, str], Check] = {}

    def supporting(self, src: DType, dst: DType) -> list[Contender]:
        return [contender for contender in self.contenders if contender.supports(src, dst)]

    def measure(
        self,
        pair: tuple[DType, DType],
        n: int,
        layout: Layout = CONTIGUOUS,
        via: Via = "calls",
        *,
        only: Sequence[str] | None = None,
        samples: int = 100,
        limit: float = math.inf,
    ) -> list[Measurement]:
        """The measurements of the contenders that support the pair (source, destination), ours first; `only`: the names
        of those to measure."""
        src, dst = pair
        chosen = [one for one in self.supporting(src, dst) if only is None or one.name in only]
        if via == "graph":
            chosen = [one for one in chosen if one.streamed and not (one.allocates or one.heavy)]
        blank = {
            one.name: Measurement(src.name, dst.name, n, layout.name, via, one.name, moved_bytes(src, dst, n))
            for one in chosen
        }
        try:
            sets = self._sets(src, dst, n, layout)
        except (TooLarge, MemoryError) as error:
            return [replace(measurement, problem=str(error)) for measurement in blank.values()]
        rows, works = dict[str, Measurement](), dict[str, Work]()
        for contender in chosen:
            measurement = replace(blank[contender.name], sets=len(sets.sources), cold=sets.cold)
            try:
                check, work = self._ready(contender, sets, via)
            except Exception as error:  # A rival may raise anything, and the others go on.
                rows[contender.name] = replace(measurement, problem=_first_line(error))
                continue
            rows[contender.name] = replace(measurement, checked=check.checked, wrong=check.wrong, first=check.first)
            if work is not None:
                works[contender.name] = work
        try:
            timed = measure(self.machine, list(works.values()), samples=samples, limit=limit)
        except Exception as error:  # As above; whose fault it was is not known.
            return [
                replace(measurement, problem=measurement.problem or _first_line(error)) for measurement in rows.values()
            ]
        for name, times in zip(works, timed, strict=True):
            rows[name] = replace(rows[name], times=times)
        return list(rows.values())

    def _sets(self, src: DType, dst: DType, n: int, layout: Layout) -> Sets:
        try:
            return make_sets(self.machine, src, dst, n, layout)
        except (TooLarge, MemoryError):
            self.machine.release()
            return make_sets(self.machine, src, dst, n, layout)

    def _ready(self, contender: Contender, sets: Sets, via: Via) -> tuple[Check, Work | None]:
        """The result of the check, and the work to time; no work if the machine has no graphs."""
        check = self._checked(contender, sets)
        run = contender.prepare(sets)
        if contender.heavy:
            check += check_head(contender, sets, run(0))
        if isinstance(contender, Ours) and not contender.allocates:
            check += check_windows(contender, sets)
        if via == "calls":
            wait = None if contender.streamed else contender.wait
            return check, Work(contender.name, run, len(sets.sources), wait)
        return check, self._graph(contender.name, run, len(sets.sources))

    def _checked(self, contender: Contender, sets: Sets) -> Check:
        # Copies have no results to compare.
        if contender.heavy or isinstance(contender, CopyKernel):
            return Check(0, 0)
        key = contender.name, sets.src.name, sets.dst.name
        if key not in self._checks:
            exact = isinstance(contender, Ours)
            self._checks[key] = check_sample(self.machine, contender, sets.src, sets.dst, exact)
        return self._checks[key]

    def _graph(self, name: str, run: Run, sets: int) -> Work | None:
        # The first call loads what cannot be loaded during a capture.
        run(0)
        nodes = sets * -(-_NODES // sets)
        launch = self.machine.capture(lambda: [run(i % sets) for i in range(nodes)])
        return None if launch is None else Work(name, lambda i: launch(), 1, calls=nodes)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
