# SPDX-License-Identifier: Apache-2.0
"""The results of a GPU by measurement: ours, the ceilings and the rivals side by side, for tables and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.gpu_results import Results
from gpucast.benchmark.buffers import CONTIGUOUS
from gpucast.benchmark.ceilings import nearest
from gpucast.benchmark.contenders import COPY, OURS
from gpucast.benchmark.pairs import Measurement
from gpucast.core.dtypes import dtype

#: The goals of the project: shares of the copy kernel's speed, for types of whole bytes and for packed ones.
WHOLE, PACKED = 0.95, 0.90


@dataclass(frozen=True)
class Group:
    """The rows of one measurement by contender, and its ceilings in bytes per second: that of the system's copy from
    the start of the run, that of our own copy kernel from the same measurement where it took part."""

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
        """Of our copy kernel; 0 where either is missing."""
        return self.ours.speed / self.copy_kernel if self.copy_kernel else 0.0

    @property
    def goal(self) -> float:
        return PACKED if dtype(self.ours.src).packed or dtype(self.ours.dst).packed else WHOLE

    def rivals(self) -> list[Measurement]:
        """Those that were timed, the quickest first."""
        found = [row for row in self.rows.values() if is_rival(row) and row.times]
        return sorted(found, key=lambda row: -row.speed)


def groups(results: Results, n: int | None = None, layout: str = CONTIGUOUS.name, via: str = "calls") -> list[Group]:
    """The measurements of one size (of every size with None) in which we were timed, in the order of the file."""
    found: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for row in results.rows:
        if row.layout == layout and row.via == via and n in (None, row.n):
            found.setdefault((row.src, row.dst, row.n), {})[row.contender] = row
    return [_group(results, rows) for rows in found.values() if OURS in rows and rows[OURS].times]


def _group(results: Results, rows: dict[str, Measurement]) -> Group:
    copy, moved = rows.get(COPY), rows[OURS].bytes
    # Of small arrays there is no copy, and older results have none.
    same = copy.speed if copy is not None and copy.times else nearest(results.ceilings, moved, False)
    return Group(rows, nearest(results.ceilings, moved, True), same)


def is_rival(row: Measurement) -> bool:
    return not row.is_ours and row.contender != COPY


def rivals(results: Results) -> list[str]:
    return list(dict.fromkeys(row.contender for row in results.rows if is_rival(row)))


def speed_ups(found: Iterable[Group], name: str) -> list[tuple[Group, float]]:
    """Their time over ours, of every measurement in which both were timed."""
    pairs = []
    for group in found:
        theirs = group.rows.get(name)
        if theirs is not None and theirs.times and group.ours.times:
            pairs.append((group, theirs.times.median / group.ours.times.median))
    return pairs


def geometric_mean(found: Sequence[Group], name: str) -> float | None:
    ratios = [ratio for _, ratio in speed_ups(found, name)]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None
