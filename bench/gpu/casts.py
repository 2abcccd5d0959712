# SPDX-License-Identifier: Apache-2.0
"""The benchmark on a GPU: ceilings, calls, and every pair with its rivals, checked first and then timed.

It writes results at once, and a later run continues where this one ended (see gpu_results). If time runs out, what is
missing is what gpu_plan puts last.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import gpu_first_call, gpu_plan, gpu_rivals, gpu_tables
from bench.gpu_lines import Lines
from bench.report.results import FOLDER, Results, newest, open_for
from bench.cases.buffers import make_sets
from bench.timing.ceilings import measure_ceilings, nearest
from bench.cases.contenders import Contender, CopyKernel
from bench.timing.gpu_machine import GpuMachine
from bench.timing.latency import measure_latency, works_of
from bench.timing.machine import Machine
from bench.cases.pairs import Pairs
from gpucast.cli.arguments import positive
from gpucast.cli.progress import progress_bar
from gpucast.core.dtypes import dtype

#: Bytes that a ceiling moves.
CEILING_SIZES = tuple(1 << power for power in (20, 22, 24, *range(26, 34)))
#: The calls whose cost is measured: pair and elements.
CALLS = tuple(
    (dtype(src), dtype(dst), n)
    for src, dst, n in (
        ("FLOAT", "FLOAT16", 1),
        ("FLOAT", "FLOAT16", 1 << 10),
        ("FLOAT", "FLOAT16", 1 << 16),
        ("UINT8", "FLOAT", 1),
        ("FLOAT", "FLOAT8E4M3FN", 1),
    )
)
#: Seconds for measuring: 15 minutes without the start of the process and the pictures.
_BUDGET = 840.0
#: The number of consecutive measurements without a single time after which to give up.
_GIVE_UP = 5
#: A guess in bytes per second, for when no ceiling could be measured.
_SPEED = 1e12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("--gpu")
    group.add_argument(
        "--results", type=Path, default=FOLDER, metavar="FOLDER", help="where results are (default: bench/results)"
    )
    group.add_argument(
        "--budget-s",
        type=positive,
        default=_BUDGET,
        metavar="S",
        help=f"seconds to measure (default: {_BUDGET:.0f}); a later run goes on with what is left",
    )
    group.add_argument(
        "--report-only", action="store_true", help="measure nothing: write tables and pictures of the newest results"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the results, tables and pictures."""
    if arguments.report_only:
        found = newest(arguments.results)
        if found is None:
            raise ValueError(f"{arguments.results} holds no results of a GPU")
        return report(found)
    machine = GpuMachine()
    results = open_for(machine.device, arguments.results)
    lines = Lines(arguments.lines)
    left = measure(machine, gpu_rivals.all_contenders(machine), results, arguments.budget_s, lines=lines)
    print(f"{results.path}: {len(results.rows):,} rows; {left} measurements are left", file=sys.stderr)
    return report(results)


def report(results: Results) -> dict[str, Any]:
    """Write the tables and pictures of results next to their file."""
    results.write_csv(results.path.with_suffix(".csv"))
    text = gpu_tables.markdown(results)
    results.path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    try:
        from bench import gpu_plots

        pictures = gpu_plots.draw(results)
    except ImportError as error:
        print(f"no pictures: {error}; run pip install matplotlib, then python -m bench --report-only", file=sys.stderr)
        pictures = []
    failures = [
        f"{one.src} to {one.dst}, {one.n:,}, {one.layout}: {one.problem or f'{one.wrong:,} differ: {one.first}'}"
        for one in results.rows
        if one.is_ours and (one.wrong or one.problem)
    ]
    return {"file": results.path.name, "pictures": [path.name for path in pictures], "failures": failures}


def measure(
    machine: Machine,
    contenders: Sequence[Contender],
    results: Results,
    seconds: float,
    first_calls: Callable[[], list[dict[str, Any]]] = gpu_first_call.measure,
    lines: Lines | None = None,
) -> int:
    """Measure what the results lack for so many seconds; returns the number of measurements that are left.

    Our copy kernel is measured with the contenders. `lines` gets each measurement's name when it is done.
    """
    end = machine.now() + seconds
    lines = lines or Lines(None)
    with machine.current():
        results.begin({**machine.facts(), "contenders": [one.name for one in contenders]})
        results.add("state", [{"stage": "begin", **machine.state()}])
        results.add_ceilings(measure_ceilings(machine, CEILING_SIZES, samples=40, limit=0.1))
        machine.release()
        contenders = [*contenders, CopyKernel(machine, quickest_copy(machine, results))]
        if not results.latencies:
            results.add("latency", _latencies(machine, contenders))
        if not results.first_calls:
            results.add("first call", first_calls())
        pairs = Pairs(machine, contenders)
        budget = _budget(machine, pairs, results, end - machine.now())
        stage, count, broken = "", len(budget.left), 0
        lines.plan(task.name for task in budget.left)
        with progress_bar(count, True, "measurements") as advance:
            for task in budget:
                if task.stage != stage:
                    stage = task.stage
                    results.add("state", [{"stage": stage, **machine.state()}])
                    print(f"{stage}: {len(budget.left)} of {count} measurements to go, "
                          f"{end - machine.now():.0f} s", file=sys.stderr)  # fmt: skip
                # A rival that ends the process, or stalls, is found in the line before it.
                lines.begin(task.name)
                rows = pairs.measure(
                    (task.src, task.dst), task.n, task.layout, task.via,
                    only=_names(pairs, task), samples=task.samples, limit=task.limit,
                )  # fmt: skip
                results.add_rows(rows)
                wrong = [
                    measurement.problem or measurement.first
                    for measurement in rows
                    if measurement.is_ours and (measurement.wrong or measurement.problem)
                ]
                lines.done(task.name, "; ".join(wrong))
                advance(1)
                # After an error of the device no later cast in this process can work.
                broken = 0 if any(measurement.times for measurement in rows) else broken + 1
                if broken == _GIVE_UP:
                    raise RuntimeError(f"nothing works any more: {rows[0].problem if rows else 'no contender'}")
        results.add("state", [{"stage": "end", **machine.state()}])
    return len(budget.left)


def quickest_copy(machine: Machine, results: Results) -> Callable[[float], Callable[[Any, Any], object]]:
    """A function that returns, for a number of bytes, the copy kernel that was quickest at the nearest size."""
    kernels = machine.copy_kernels()
    measured = [one for one in results.ceilings if one.name in kernels]

    def choose(moved: float) -> Callable[[Any, Any], object]:
        speeds = {name: nearest([one for one in measured if one.name == name], moved) for name in kernels}
        return kernels[max(speeds, key=lambda name: speeds[name])]

    return choose


def _names(pairs: Pairs, task: gpu_plan.MeasurementTask) -> list[str]:
    has = [one.name for one in pairs.supporting(task.src, task.dst)]
    return task.names(has, [one.name for one in pairs.contenders if one.heavy])


def _budget(machine: Machine, pairs: Pairs, results: Results, seconds: float) -> gpu_plan.Budget:
    def has(src: Any, dst: Any) -> list[str]:
        return [one.name for one in pairs.supporting(src, dst)]

    # What earlier runs measured, and what tasks before this one are to measure: where no rival compiles, the last
    # stage has nothing to add.
    done, tasks = results.done, list[gpu_plan.MeasurementTask]()
    for task in gpu_plan.plan(has, machine.free_bytes()):
        rows = {(task.key, name) for name in _timed(pairs, task)}
        if not rows <= done:
            tasks.append(task)
            done |= rows
    speed = nearest(results.ceilings, 1 << 31) or _SPEED
    heavy = [one.name for one in pairs.contenders if one.heavy]
    estimator = gpu_plan.Estimator(tasks, speed, heavy, has)
    return gpu_plan.Budget(tasks, seconds, estimator.seconds, machine.now)


def _timed(pairs: Pairs, task: gpu_plan.MeasurementTask) -> list[str]:
    """The contenders that a task measures: in a graph only those that write to a given array."""
    captured = [one.name for one in pairs.contenders if one.streamed and not (one.allocates or one.heavy)]
    return [name for name in _names(pairs, task) if task.via != "graph" or name in captured]


def _latencies(machine: Machine, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    lines = []
    for src, dst, n in CALLS:
        works = works_of([one for one in contenders if not one.heavy], make_sets(machine, src, dst, n))
        for work, latency in zip(works, measure_latency(machine, works), strict=True):
            lines.append({"src": src.name, "dst": dst.name, "n": n, "contender": work.name, **asdict(latency)})
    return lines
