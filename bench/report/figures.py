# SPDX-License-Identifier: Apache-2.0
"""The results of a GPU by measurement: ours, the ceilings and the rivals side by side, for tables and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.cases.buffers import CONTIGUOUS
from bench.cases.contenders import COPY, OURS
from bench.cases.pairs import Measurement
from bench.report.results import Results
from bench.timing.ceilings import nearest
from gpucast.core.dtypes import dtype

#: The goals of the project: shares of the copy kernel's speed, for types of whole bytes and for packed ones.
WHOLE, PACKED = 0.95, 0.90


@dataclass(frozen=True)
class Group:
    """The measurements of one case by contender, and its ceilings in bytes per second.

    The system's copy was measured at the start of the run, our own copy kernel together with the case if it took part.
    """

    rows: dict[str, Measurement]
    memcpy: float
    copy_kernel: float

    @property
    def ours(self) -> Measurement:
        return self.rows[OURS]

    @property
    def name(self) -> str:
        return f"{self.ours.src} to {self.ours.dst}"

    @property
    def share(self) -> float:
        """Our speed as a share of our copy kernel's; 0 if either is missing."""
        return self.ours.speed / self.copy_kernel if self.copy_kernel else 0.0

    @property
    def goal(self) -> float:
        return PACKED if dtype(self.ours.src).packed or dtype(self.ours.dst).packed else WHOLE

    def rivals(self) -> list[Measurement]:
        """The rivals that were timed, the quickest first."""
        found = [measurement for measurement in self.rows.values() if is_rival(measurement) and measurement.times]
        return sorted(found, key=lambda measurement: -measurement.speed)


def groups(results: Results, n: int | None = None, layout: str = CONTIGUOUS.name, via: str = "calls") -> list[Group]:
    """The measurements of one size (of every size with None) in which we were timed, in the order of the file."""
    found: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for measurement in results.rows:
        if measurement.layout == layout and measurement.via == via and n in (None, measurement.n):
            found.setdefault((measurement.src, measurement.dst, measurement.n), {})[measurement.contender] = measurement
    return [_group(results, rows) for rows in found.values() if OURS in rows and rows[OURS].times]


def _group(results: Results, rows: dict[str, Measurement]) -> Group:
    copy, moved = rows.get(COPY), rows[OURS].bytes
    # Small arrays have no copy, and neither have older results.
    same = copy.speed if copy is not None and copy.times else nearest(results.ceilings, moved, False)
    return Group(rows, nearest(results.ceilings, moved, True), same)


def is_rival(measurement: Measurement) -> bool:
    return not measurement.is_ours and measurement.contender != COPY


def rivals(results: Results) -> list[str]:
    return list(dict.fromkeys(measurement.contender for measurement in results.rows if is_rival(measurement)))


def speed_ups(found: Iterable[Group], name: str) -> list[tuple[Group, float]]:
    """The rival's time divided by ours, for every measurement in which both were timed."""
    pairs = []
    for group in found:
        theirs = group.rows.get(name)
        if theirs is not None and theirs.times and group.ours.times:
            pairs.append((group, theirs.times.median / group.ours.times.median))
    return pairs


def geometric_mean(found: Sequence[Group], name: str) -> float | None:
    ratios = [ratio for _, ratio in speed_ups(found, name)]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None
