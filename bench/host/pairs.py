# SPDX-License-Identifier: Apache-2.0
"""Casts of every pair into ``out=`` beside a copy of as many bytes: ``python -m bench.host.pairs``.

A cast of n elements reads and writes n elements; the copy reads half of these bytes and writes as many. It is the
quicker one of NumPy's and the module's own. Arrays are longer than caches, both sides run in turn in one process with
default settings, and the quickest round counts. With GPUCAST_HOST_THREADS=1 it is processor time, which other programs
on the machine disturb less. The figures are written with ``--out``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import gpucast
from bench.host.casts import check, in_range
from bench.revision import machine
from bench.timing.times import quickest
from gpucast.core import extension
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import resolve

ELEMENTS = 1 << 25
#: What the median of all pairs and each of them should not exceed.
GOALS = (1.1, 1.35)


@dataclass(frozen=True)
class PairMeasurement:
    """Gigabytes that a second reads and writes."""

    src: str
    dst: str
    cast: float
    copy: float

    @property
    def ratio(self) -> float:
        """The time of the cast over that of the copy."""
        return self.copy / self.cast


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.host.pairs", description=__doc__)
    parser.add_argument("--src", nargs="+", default=[], metavar="TYPE", help="only these source types")
    parser.add_argument("--dst", nargs="+", default=[], metavar="TYPE", help="only these destination types")
    parser.add_argument("--elements", type=int, default=ELEMENTS, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there")
    asked = parser.parse_args(arguments)
    every = [kind for kind in DTYPES if kind.family != "string"]
    sources, targets = (list(map(gpucast.dtype, names)) or every for names in (asked.src, asked.dst))
    rows = []
    for row in measured(sources, targets, asked.elements, asked.repeats):
        if row.ratio > GOALS[1]:
            print(line(row), flush=True)
        rows.append(row)
    print(summary(rows))
    if asked.out:
        figures = {"machine": machine(), "level": extension.status(), "elements": asked.elements}
        asked.out.write_text(json.dumps(figures | {"rows": [asdict(row) for row in rows]}) + "\n", encoding="utf-8")
    return 0


def measured(
    sources: Sequence[DType], targets: Sequence[DType], elements: int, repeats: int
) -> Iterator[PairMeasurement]:
    for src, dst in itertools.product(sources, targets):
        block = in_range(src, dst, np.random.default_rng(2))
        check(block[-1 << 12 :], resolve(src, dst))
        x, out = np.resize(block, elements), np.ones(elements, dst.code_numpy).view(dst.numpy)
        moved = x.nbytes + out.nbytes
        # Written, or the system reads one page of zeros for all of them; of its own for each side, or one would find in
        # caches what another has left there.
        one, other, own, copied = (np.ones(moved // 2, np.uint8) for _ in range(4))
        best = quickest(
            {
                "cast": partial(gpucast.cast, x, dst, out=out),
                "NumPy": partial(np.copyto, one, other),
                "own": partial(gpucast.cast, own, "UINT8", out=copied),
            },
            repeats,
            clock=time.thread_time if extension.MODULE.THREADS == 1 else time.perf_counter,
        )
        cast, copy = best["cast"], min(best["NumPy"], best["own"])
        yield PairMeasurement(src.name, dst.name, round(moved / cast / 1e9, 2), round(moved / copy / 1e9, 2))


def line(row: PairMeasurement) -> str:
    return f"{row.src:14} {row.dst:14} {row.cast:6.1f} GB/s, the copy {row.copy:6.1f}: {row.ratio:5.2f} of its time"


def summary(rows: Sequence[PairMeasurement]) -> str:
    """The median of all pairs, and how many exceed the goals."""
    ratios = [row.ratio for row in rows]
    over = ", ".join(f"above {goal}: {sum(ratio > goal for ratio in ratios)}" for goal in GOALS)
    return f"{len(rows)} pairs: median {statistics.median(ratios):.2f} of a copy's time; {over}"


if __name__ == "__main__":
    raise SystemExit(main())
