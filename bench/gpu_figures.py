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
from gpucast.benchmark.contenders import OURS
from gpucast.benchmark.pairs import Row
from gpucast.core.dtypes import dtype

#: The goals of the project: shares of the better ceiling, for types of whole bytes and for packed ones.
WHOLE, PACKED = 0.95, 0.90


@dataclass(frozen=True)
class Group:
    """The rows of one measurement by contender, and its ceilings in bytes per second."""

    rows: dict[str, Row]
    memcpy: float
    copy_kernel: float

    @property
    def ours(self) -> Row:
        return self.rows[OURS]

    @property
    def name(self) -> str:
        return f"{self.ours.src} to {self.ours.dst}"

    @property
    def share(self) -> float:
        """Of the better ceiling; 0 where either is missing."""
        best = max(self.memcpy, self.copy_kernel)
        return self.ours.speed / best if best else 0.0

    @property
    def goal(self) -> float:
        return PACKED if dtype(self.ours.src).packed or dtype(self.ours.dst).packed else WHOLE

    def rivals(self) -> list[Row]:
        """Those that were timed, the quickest first."""
        found = [row for row in self.rows.values() if not row.is_ours and row.times]
        return sorted(found, key=lambda row: -row.speed)


def groups(results: Results, n: int | None = None, layout: str = CONTIGUOUS.name, via: str = "calls") -> list[Group]:
    """The measurements of one size (of every size with None) in which we were timed, in the order of the file."""
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in results.rows:
        if row.layout == layout and row.via == via and n in (None, row.n):
            found.setdefault((row.src, row.dst, row.n), {})[row.contender] = row
    return [
        Group(rows, *(nearest(results.ceilings, rows[OURS].bytes, memcpy) for memcpy in (True, False)))
        for rows in found.values()
        if OURS in rows and rows[OURS].times
    ]


def rivals(results: Results) -> list[str]:
    return list(dict.fromkeys(row.contender for row in results.rows if not row.is_ours))


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
