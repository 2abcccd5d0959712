# SPDX-License-Identifier: Apache-2.0
"""A benchmark of a few seconds: common pairs compared with the rivals that are installed, and the cost of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.cases.buffers import make_sets
from bench.timing.ceilings import Ceiling, measure_ceilings, nearest
from bench.cases.contenders import OURS, Contender
from bench.timing.latency import CALLS, Latency, measure_latency, works_of
from bench.timing.machine import Machine
from bench.cases.pairs import Measurement, Pairs
from bench.timing.times import LEAST, verdict
from gpucast.core.dtypes import DType, dtype

Pair = tuple[DType, DType]

#: The most important first: if time is short, the last ones are left out.
PAIRS: tuple[Pair, ...] = tuple(
    (dtype(src), dtype(dst))
    for src, dst in (
        ("FLOAT", "FLOAT16"),
        ("INT8", "UINT8"),
        ("FLOAT", "FLOAT8E4M3FN"),
        ("BFLOAT16", "FLOAT"),
        ("INT4", "FLOAT16"),
        ("UINT8", "FLOAT"),
        ("FLOAT8E4M3FN", "FLOAT16"),
        ("FLOAT", "BFLOAT16"),
        ("DOUBLE", "FLOAT"),
        ("FLOAT", "INT8"),
        ("BFLOAT16", "FLOAT4E2M1"),
        ("INT64", "INT32"),
    )
)
#: The pair whose calls are timed.
LATENCY_PAIR: Pair = (dtype("FLOAT"), dtype("FLOAT16"))
_LIMITER = (
    "memory is what limits a cast, so the ceiling is the most it can reach; for one that stays below, "
    "python -m bench --static estimates which unit of the GPU is full"
)
#: The shares of the time that the batches of a contender for one pair, and those of a ceiling, may take.
_PAIR_SHARE, _CEILING_SHARE = 0.01, 0.01


@dataclass(frozen=True)
class QuickReport:
    """The results; `left` pairs were not measured for lack of time."""

    device: str
    facts: dict[str, Any]
    n: int
    ceilings: list[Ceiling]
    rows: list[Measurement]
    latencies: dict[str, Latency]
    left: int

    @property
    def wrong(self) -> list[Measurement]:
        """Our own measurements whose results differ from the reference, or that failed."""
        return [
            measurement
            for measurement in self.rows
            if measurement.is_ours and (measurement.wrong or measurement.problem)
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "facts": self.facts,
            "n": self.n,
            "ceilings": [asdict(one) for one in self.ceilings],
            "rows": [measurement.as_json() for measurement in self.rows],
            "latencies": {name: asdict(latency) for name, latency in self.latencies.items()},
            "left": self.left,
        }


def run(
    machine: Machine,
    contenders: Sequence[Contender],
    pairs: Sequence[Pair],
    n: int,
    seconds: float,
    advance: Callable[[int], object] = lambda pairs: None,
    on_measured: Callable[[list[Measurement]], object] = lambda rows: None,
) -> QuickReport:
    """Measure for about so many seconds, at least one pair. `on_measured` gets the figures of each pair at once."""
    end = machine.now() + seconds
    with machine.current():
        # A size that represents large arrays of every pair.
        size = min(1 << (4 * n).bit_length(), machine.free_bytes() // 8 // 256 * 256)
        ceilings = measure_ceilings(machine, [size], samples=100, limit=_CEILING_SHARE * seconds)
        latencies = _latencies(machine, contenders)
        measured, rows = Pairs(machine, contenders), list[Measurement]()
        left = len(pairs)
        for pair in pairs:
            if rows and machine.now() >= end:
                break
            of_pair = measured.measure(pair, n, samples=100, limit=_PAIR_SHARE * seconds)
            on_measured(of_pair)
            rows += of_pair
            left -= 1
            advance(1)
        return QuickReport(machine.device, machine.facts() | machine.state(), n, ceilings, rows, latencies, left)


def _latencies(machine: Machine, contenders: Sequence[Contender]) -> dict[str, Latency]:
    src, dst = LATENCY_PAIR
    works = works_of(contenders, make_sets(machine, src, dst, 1))
    # Fewer calls on the host, where a call includes the work.
    taken = measure_latency(machine, works, loops=LEAST, calls=CALLS if machine.stream is not None else CALLS // 10)
    return {work.name: latency for work, latency in zip(works, taken, strict=True)}


def text(report: QuickReport) -> str:
    """The report as a table of text."""
    place = "the host (device: none)" if report.device == "none" else report.device
    lines = [f"gpucast bench on {place}: {report.n:,} elements, GB/s of bytes read and written"]
    lines += [f"ceiling, {one.name}: {one.speed / 1e9:,.0f} GB/s" for one in report.ceilings]
    if report.device != "none":
        lines.append(_LIMITER)
    names = list(dict.fromkeys(measurement.contender for measurement in report.rows))
    # Allocation takes no time on the GPU, so one of our two columns is enough.
    names = [name for name in names if name != "gpucast allocating"]
    width = max((len(f"{measurement.src} to {measurement.dst}") for measurement in report.rows), default=4)
    lines.append(" ".join([f"{'pair':<{width}}", "of ceiling", *(f"{name:>13}" for name in names), "differ"]))
    for (src, dst), group in _by_pair(report.rows).items():
        ours = group.get(OURS)
        best = nearest(report.ceilings, ours.bytes) if ours else 0.0
        share = f"{ours.speed / best:9.0%} " if ours and ours.times and best else f"{'-':>10}"
        cells = [_cell(group.get(name), ours) for name in names]
        wrong = sum(measurement.wrong for measurement in group.values() if measurement.is_ours)
        lines.append(" ".join([f"{f'{src} to {dst}':<{width}}", share, *cells, f"{wrong:>6,}"]))
    lines += _claims(report.rows, names)
    if report.left:
        lines.append(f"{report.left} pairs left out for want of time")
    one_call = " to ".join(map(str, LATENCY_PAIR))
    lines.append(f"one call at n = 1, {one_call}, microseconds (99th percentile of single calls):")
    lines += [
        f"  {name:<18} {latency.times.median * 1e6:6.2f} ({latency.p99 * 1e6:.2f})"
        for name, latency in report.latencies.items()
    ]
    lines += [f"DIFFERS from the reference: {bad.src} to {bad.dst}: {bad.first or bad.problem}" for bad in report.wrong]
    return "\n".join(lines)


def _by_pair(rows: Sequence[Measurement]) -> dict[tuple[str, str], dict[str, Measurement]]:
    found: dict[tuple[str, str], dict[str, Measurement]] = {}
    for measurement in rows:
        found.setdefault((measurement.src, measurement.dst), {})[measurement.contender] = measurement
    return found


def _cell(measurement: Measurement | None, ours: Measurement | None) -> str:
    """A speed; ~ marks one that cannot be distinguished from ours, * one whose results differ from the reference."""
    if measurement is None or measurement.times is None:
        return f"{'-':>13}"
    same = (
        ours is not None
        and measurement is not ours
        and ours.times is not None
        and verdict(ours.times, measurement.times) == "same"
    )
    mark = ("~" if same else "") + ("*" if measurement.wrong else "")
    return f"{measurement.speed / 1e9:#.4g}{mark}".rjust(13)


def _claims(rows: Sequence[Measurement], names: Sequence[str]) -> list[str]:
    """For every rival: the geometric mean of the speed-ups, and how many pairs are faster, the same or slower."""
    lines = []
    for name in names:
        if name.startswith(OURS):
            continue
        ratios, verdicts = [], list[str]()
        for group in _by_pair(rows).values():
            ours, theirs = group.get(OURS), group.get(name)
            if ours and theirs and ours.times and theirs.times:
                ratios.append(theirs.times.median / ours.times.median)
                verdicts.append(verdict(ours.times, theirs.times))
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("faster", "same", "slower"))
            lines.append(f"{mean:.2f} x {name} (geometric mean of {len(ratios)} pairs: {counts})")
    lines.append("~ not to be told from gpucast (5th to 95th percentiles overlap), * results differ from the reference")
    return lines
