# SPDX-License-Identifier: Apache-2.0
"""``python -m bench``: everything that is measured on a GPU, the most valuable first, each result checked and written
at once. A later run with the same code on the same GPU goes on; what ended an earlier one comes last."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.cases.buffers import make_sets
from bench.cases.contenders import Contender, CopyKernel
from bench.cases.pairs import Pairs
from bench.gpu import calls, first_call, many, plan, quantize, users
from bench.peers.rivals import all_contenders
from bench.report import tables
from bench.report.results import FOLDER, Results, newest, open_for
from bench.timing.ceilings import measure_ceilings, nearest, warm_clocks
from bench.timing.gpu_machine import GpuMachine
from bench.timing.latency import measure_latency, works_of
from bench.timing.machine import Machine
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
#: The number of consecutive failures after which to give up: after an error of the device no later cast can work.
_GIVE_UP = 20

#: A stage, a name, and what does the work; it returns why ours failed, or "".
Task = tuple[str, str, Callable[[], str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a GPU")
    group.add_argument(
        "--results", type=Path, default=FOLDER, metavar="FOLDER", help="where results are (default: bench/results)"
    )
    group.add_argument(
        "--seconds", type=positive, default=float("inf"), metavar="S", help="begin nothing after S; a later run goes on"
    )
    group.add_argument(
        "--report-only", action="store_true", help="measure nothing: write tables and pictures of the newest results"
    )


def run(arguments: argparse.Namespace, stages: Sequence[str] = plan.STAGES) -> dict[str, Any]:
    """Measure, and write the results, tables and pictures."""
    if arguments.report_only:
        found = newest(arguments.results)
        if found is None:
            raise ValueError(f"{arguments.results} holds no results of a GPU")
        return report(found)
    machine = GpuMachine()
    results = open_for(machine.device, arguments.results)
    left = measure(machine, all_contenders(machine), results, arguments.seconds, stages)
    print(f"{results.path}: {len(results.rows):,} rows; {left} measurements are left", file=sys.stderr)
    return report(results)


def report(results: Results) -> dict[str, Any]:
    """Write the tables and pictures of results next to their file."""
    results.write_csv(results.path.with_suffix(".csv"))
    text = tables.markdown(results)
    results.path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    try:
        from bench.report import plots

        pictures = plots.draw(results)
    except ImportError as error:
        print(f"no pictures: {error}; run pip install matplotlib, then python -m bench --report-only", file=sys.stderr)
        pictures = []
    failures = [f"{task}: {why}" for task, why in results.failed.items()]
    return {"file": results.path.name, "pictures": [path.name for path in pictures], "failures": failures}


def measure(
    machine: Machine,
    contenders: Sequence[Contender],
    results: Results,
    seconds: float = float("inf"),
    stages: Sequence[str] = plan.STAGES,
) -> int:
    """Measure what the results lack, and begin nothing after so many seconds; returns how many tasks are left."""
    end = machine.now() + seconds
    contenders = [*contenders, CopyKernel(machine, quickest_copy(machine, results))]
    with machine.current():
        results.begin({**machine.facts(), "contenders": [one.name for one in contenders]})
        warm_clocks(machine)
        todo = [task for task in _tasks(machine, contenders, results) if task[0] in stages]
        todo = sorted((task for task in todo if task[1] not in results.done), key=lambda task: task[1] in results.begun)
        left, stage, broken = len(todo), "", 0
        with progress_bar(left, True, "measurements") as advance:
            for task_stage, name, work in todo:
                if machine.now() >= end:
                    break
                if task_stage != stage:
                    stage = task_stage
                    results.add("state", [{"stage": stage, **machine.state()}])
                    print(f"{stage}: {left} measurements to go", file=sys.stderr)
                results.start(name)
                try:
                    problem = work()
                except Exception as error:  # The others may do without what this one lacks.
                    problem = f"{type(error).__name__}: {error}"
                results.end(name, problem)
                left -= 1
                advance(1)
                broken = broken + 1 if problem else 0
                if broken == _GIVE_UP:
                    raise RuntimeError(f"nothing works any more: {problem}")
        results.add("state", [{"stage": "end", **machine.state()}])
    return left


def quickest_copy(machine: Machine, results: Results) -> Callable[[float], Callable[[Any, Any], object]]:
    """A function that returns, for a number of bytes, the copy kernel that was quickest at the nearest size."""
    kernels = machine.copy_kernels()

    def choose(moved: float) -> Callable[[Any, Any], object]:
        speeds = {name: nearest([one for one in results.ceilings if one.name == name], moved) for name in kernels}
        return kernels[max(speeds, key=lambda name: speeds[name])]

    return choose


def _tasks(machine: Machine, contenders: Sequence[Contender], results: Results) -> list[Task]:
    """All, in the order of `plan.STAGES`."""

    def listed(stage: str, case: Any, measured: Callable[[], list[calls.Line]]) -> Task:
        def work() -> str:
            lines = measured()
            results.add("call", lines)
            print(calls.report(lines))
            return calls.problems(lines)

        return stage, f"{stage}: {case}", work

    def once(stage: str, work: Callable[[], None]) -> Task:
        def done() -> str:
            work()
            return ""

        return stage, stage, done

    def ceilings() -> None:
        results.add_ceilings(measure_ceilings(machine, CEILING_SIZES, samples=40, limit=0.1))

    tasks: list[Task] = [
        *(listed("users", case, lambda case=case: users.measure_case(machine, case)) for case in users.CASES),  # type: ignore[misc]
        once("ceilings", ceilings),
        once("calls", lambda: results.add("latency", _latencies(machine, contenders))),
        once("first call", lambda: results.add("first call", first_call.measure())),
    ]
    for stage, module in (("quantize", quantize), ("many", many)):
        there: list[Any] = []
        for case in module.CASES:

            def measured(module: Any = module, case: Any = case, there: list[Any] = there) -> list[calls.Line]:
                # Rivals may take seconds to start.
                there[:] = there or module.rivals(machine)
                return module.measure_case(machine, case, there)  # type: ignore[no-any-return]

            tasks.append(listed(stage, case, measured))
    tasks += _pairs(machine, Pairs(machine, contenders), results)
    return sorted(tasks, key=lambda task: plan.STAGES.index(task[0]))


def _pairs(machine: Machine, pairs: Pairs, results: Results) -> Iterator[Task]:
    heavy = [one.name for one in pairs.contenders if one.heavy]

    def has(src: Any, dst: Any) -> list[str]:
        return [one.name for one in pairs.supporting(src, dst)]

    for task in plan.plan(has, machine.free_bytes()):

        def work(task: plan.CastTask = task) -> str:
            rows = pairs.measure(
                (task.src, task.dst), task.n, task.layout, task.via, samples=task.samples, limit=task.limit,
                only=task.names(has(task.src, task.dst), heavy),
            )  # fmt: skip
            results.add_rows(rows)
            return "; ".join(one.problem or one.first for one in rows if one.is_ours and (one.wrong or one.problem))

        yield task.stage, str(task), work


def _latencies(machine: Machine, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    lines = []
    for src, dst, n in CALLS:
        works = works_of([one for one in contenders if not one.heavy], make_sets(machine, src, dst, n))
        for work, latency in zip(works, measure_latency(machine, works), strict=True):
            lines.append({"src": src.name, "dst": dst.name, "n": n, "contender": work.name, **asdict(latency)})
    return lines
