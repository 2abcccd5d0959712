# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --quick``: common pairs beside the rivals that are installed, and the cost of a call."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.cases.buffers import make_sets
from bench.cases.contenders import OURS, Contender, contenders
from bench.cases.pairs import Measurement, Pairs
from bench.timing.ceilings import Ceiling, measure_ceilings, nearest, warm_clocks
from bench.timing.gpu_machine import GpuMachine
from bench.timing.latency import CALLS, Latency, measure_latency, works_of
from bench.timing.machine import HostMachine, Machine
from bench.timing.times import LEAST, verdict
from gpucast.core.dtypes import DType, dtype
from gpucast.gpu import devices

Pair = tuple[DType, DType]
#: The most important first: if time is short, the last ones are left out.
PAIRS: tuple[Pair, ...] = tuple(
    (dtype(src), dtype(dst))
    for src, dst in (
        ("FLOAT", "FLOAT16"), ("INT8", "UINT8"), ("FLOAT", "FLOAT8E4M3FN"), ("BFLOAT16", "FLOAT"), ("INT4", "FLOAT16"),
        ("UINT8", "FLOAT"), ("FLOAT8E4M3FN", "FLOAT16"), ("FLOAT", "BFLOAT16"), ("DOUBLE", "FLOAT"), ("FLOAT", "INT8"),
        ("BFLOAT16", "FLOAT4E2M1"), ("INT64", "INT32"),
    )
)  # fmt: skip
#: Seconds without --seconds; elements of an array on a GPU, and on the host.
SECONDS, ELEMENTS, ON_HOST = 20.0, 1 << 26, 1 << 18
#: The share of the time that the batches of a contender for one pair, and those of a ceiling, may take.
_SHARE = 0.01
_NOTES = """\
~ not to be told from gpucast (5th to 95th percentiles overlap), * results differ from the reference
memory is what limits a cast, so the ceiling is the most it can reach; for one that stays below,
python -m bench --static estimates which unit of the GPU is full"""


@dataclass(frozen=True)
class QuickReport:
    """The results; `left` pairs were not measured for lack of time."""

    machine: Machine
    n: int
    ceilings: list[Ceiling]
    rows: list[Measurement]
    latencies: dict[str, Latency]
    left: int


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """On the GPU; on the host with --allow-cpu where there is none."""
    on_host = devices.unavailable() is not None
    machine: Machine = HostMachine() if on_host else GpuMachine()
    asked = [[dtype(name) for name in names] for names in (arguments.src, arguments.dst)]
    pairs: Sequence[Pair] = PAIRS
    if any(asked):
        sources, targets = (
            given or sorted({pair[side] for pair in PAIRS}, key=str) for side, given in enumerate(asked)
        )
        pairs = list(itertools.product(sources, targets))
    if on_host:
        # Types below one byte are packed on a GPU but not on the host, so host figures for them would mislead.
        pairs = [pair for pair in pairs if not (pair[0].packed or pair[1].packed)]
    if not pairs:
        raise ValueError("on the host only pairs of types of whole bytes are measured")
    elements = arguments.elements[0] if arguments.elements else ON_HOST if on_host else ELEMENTS
    report = measure(machine, contenders(machine), pairs, elements, min(arguments.seconds, SECONDS))
    print(text(report))
    return {
        "facts": machine.facts() | machine.state(),
        "n": report.n,
        "ceilings": [asdict(one) for one in report.ceilings],
        "rows": [one.as_json() for one in report.rows],
        "latencies": {name: asdict(latency) for name, latency in report.latencies.items()},
        "left": report.left,
        "failures": [f"{bad.src} to {bad.dst}: {bad.first or bad.problem}" for bad in wrong(report.rows)],
    }


def wrong(rows: Sequence[Measurement]) -> list[Measurement]:
    """Our own measurements whose results differ from the reference, or that failed."""
    return [one for one in rows if one.is_ours and (one.wrong or one.problem)]


def measure(
    machine: Machine, contenders: Sequence[Contender], pairs: Sequence[Pair], n: int, seconds: float
) -> QuickReport:
    """Measure for about so many seconds, at least one pair."""
    end = machine.now() + seconds
    with machine.current():
        warm_clocks(machine)
        # A size that represents large arrays of every pair.
        size = min(1 << (4 * n).bit_length(), machine.free_bytes() // 8 // 256 * 256)
        ceilings = measure_ceilings(machine, [size], samples=100, limit=_SHARE * seconds)
        works = works_of(contenders, make_sets(machine, *PAIRS[0], 1))
        # Fewer calls on the host, where a call includes the work.
        calls = CALLS if machine.stream is not None else CALLS // 10
        latencies = measure_latency(machine, works, loops=LEAST, calls=calls)
        measured, rows, left = Pairs(machine, contenders), list[Measurement](), len(pairs)
        for pair in pairs:
            if rows and machine.now() >= end:
                break
            rows += measured.measure(pair, n, samples=100, limit=_SHARE * seconds)
            left -= 1
        named = {work.name: latency for work, latency in zip(works, latencies, strict=True)}
        return QuickReport(machine, n, ceilings, rows, named, left)


def text(report: QuickReport) -> str:
    """The report as a table of text."""
    device, rows = report.machine.device, report.rows
    place = "the host (device: none)" if device == "none" else device
    lines = [f"gpucast bench on {place}: {report.n:,} elements, GB/s of bytes read and written"]
    lines += [f"ceiling, {one.name}: {one.speed / 1e9:,.0f} GB/s" for one in report.ceilings]
    # Allocation takes no time on the GPU, so one of our two columns is enough.
    names = [name for name in dict.fromkeys(one.contender for one in rows) if name != f"{OURS} allocating"]
    width = max(len(f"{one.src} to {one.dst}") for one in rows)
    lines.append(" ".join([f"{'pair':<{width}}", "of ceiling", *(f"{name:>13}" for name in names), "differ"]))
    groups: dict[tuple[str, str], dict[str, Measurement]] = {}
    for one in rows:
        groups.setdefault((one.src, one.dst), {})[one.contender] = one
    for (src, dst), group in groups.items():
        ours = group.get(OURS)
        best = nearest(report.ceilings, ours.bytes) if ours else 0.0
        share = f"{ours.speed / best:9.0%} " if ours and ours.times and best else f"{'-':>10}"
        differ = sum(one.wrong for one in group.values() if one.is_ours)
        cells = [_cell(group.get(name), ours) for name in names]
        lines.append(" ".join([f"{f'{src} to {dst}':<{width}}", share, *cells, f"{differ:>6,}"]))
    for name in names:
        both = [(g[OURS].times, g[name].times) for g in groups.values() if OURS in g and name in g and name != OURS]
        timed = [(ours, theirs) for ours, theirs in both if ours and theirs]
        if timed:
            mean = math.exp(sum(math.log(theirs.median / ours.median) for ours, theirs in timed) / len(timed))
            said = [verdict(ours, theirs) for ours, theirs in timed]
            counts = ", ".join(f"{said.count(word)} {word}" for word in ("faster", "same", "slower"))
            lines.append(f"{mean:.2f} x {name} (geometric mean of {len(timed)} pairs: {counts})")
    lines.append(_NOTES if device != "none" else _NOTES.partition("\n")[0])
    if report.left:
        lines.append(f"{report.left} pairs left out for want of time")
    one_call = " to ".join(map(str, PAIRS[0]))
    lines.append(f"one call at n = 1, {one_call}, microseconds (99th percentile of single calls):")
    lines += [
        f"  {name:<18} {latency.times.median * 1e6:6.2f} ({latency.p99 * 1e6:.2f})"
        for name, latency in report.latencies.items()
    ]
    lines += [f"DIFFERS from the reference: {bad.src} to {bad.dst}: {bad.first or bad.problem}" for bad in wrong(rows)]
    return "\n".join(lines)


def _cell(one: Measurement | None, ours: Measurement | None) -> str:
    """A speed; ~ marks one that cannot be distinguished from ours, * one whose results differ from the reference."""
    if one is None or one.times is None:
        return f"{'-':>13}"
    same = ours is not None and one is not ours and ours.times is not None and verdict(ours.times, one.times) == "same"
    return f"{one.speed / 1e9:#.4g}{'~' if same else ''}{'*' if one.wrong else ''}".rjust(13)
