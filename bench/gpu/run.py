# SPDX-License-Identifier: Apache-2.0
"""Everything that is measured on a GPU, the most valuable first, each result checked and written at once. A later run
with the same code on the same GPU goes on; what ended an earlier one comes last."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.cases import pairs
from bench.cases.buffers import rotation
from bench.cases.case import Call, Case, failures
from bench.cases.contenders import UNROLLS, Contender, contenders, copies, copy_name
from bench.cases.pairs import COMMON, PairCase
from bench.gpu import many_cases, quantize_cases, user_cases
from bench.report import gpu_tables
from bench.report.results import Results, open_for
from bench.timing.machine import Copy, Machine
from gpucast.cli.progress import progress_bar
from gpucast.core.dtypes import dtype

#: Bytes that copies move.
COPY_SIZES = tuple(1 << power for power in (20, 22, 24, *range(26, 34)))
MEMCPY = "memcpy"
#: Seconds of copies before all measurements, because an idle GPU's clocks are low and rise slowly; bytes of each copy.
CLOCK_WARM_UP, _WARM_UP_BYTES = 0.5, 1 << 26
#: The number of consecutive failures after which to give up: after an error of the device no later cast can work.
_GIVE_UP = 20
#: Of --quick: the elements and seconds that it takes, and the pairs, of which the last ones are left out if time is
#: short.
ELEMENTS, SECONDS = 1 << 26, 20.0
QUICK_PAIRS = COMMON[:3] + COMMON[6:10] + COMMON[11:16]


def run(arguments: argparse.Namespace, stages: Sequence[str] = ()) -> dict[str, Any]:
    """Measure, and write the results, the tables and the picture. A run that finds all measured writes these anew."""
    machine = Machine()
    results = open_for(machine.device, arguments.results)
    chosen = (case for case in cases(machine, contenders(machine), results) if not stages or case.stage in stages)
    left = measure(machine, chosen, results)
    print(f"{results.path}: {len(results.rows()):,} rows; {left} cases are left", file=sys.stderr)
    return report(results)


def quick(arguments: argparse.Namespace) -> dict[str, Any]:
    """A few pairs beside the rivals that are installed, as a table."""
    machine, results = Machine(), Results()
    n = arguments.elements[0] if arguments.elements else ELEMENTS
    asked = [[dtype(name) for name in names] for names in (arguments.src, arguments.dst)]
    sources, targets = (names or sorted({pair[side] for pair in COMMON}, key=str) for side, names in enumerate(asked))
    chosen = [(src, dst) for src in sources for dst in targets] if any(asked) else QUICK_PAIRS
    everyone, choose = contenders(machine), quickest_copy(machine, results)
    quick_cases = [PairCase("quick", pair, n, samples=100, limit=0.2) for pair in chosen]
    todo = [copy_case(2 * n), *(one.case(everyone, choose) for one in quick_cases)]
    todo += [one.case(everyone, choose) for one in pairs.calls()][:1]
    left = measure(machine, todo, results, SECONDS)
    rivals = [f"- {line}" for line in gpu_tables.rival_lines(results, n)]
    print(f"gpucast on {machine.device}\n", gpu_tables.common_table(results, n), *rivals, sep="\n")
    print("", gpu_tables.case_table(results, "copies", "calls"), sep="\n")
    if left:
        print(f"{left} cases left out for want of time")
    return figures(results)


def figures(results: Results) -> dict[str, Any]:
    """What --json writes."""
    found = {"facts": results.facts, "rows": [row.as_json() for row in results.rows()]}
    return found | {"failures": [f"{case}: {why}" for case, why in results.failed.items()]}


def report(results: Results) -> dict[str, Any]:
    """Write the tables and the picture of results next to their file."""
    assert results.path is not None
    text = gpu_tables.markdown(results)
    results.path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    picture = gpu_tables.share_picture(results)
    if picture:
        results.path.with_suffix(".svg").write_text(picture, encoding="utf-8")
    return {"file": results.path.name, "failures": figures(results)["failures"]}


def measure(machine: Machine, given: Iterable[Case], results: Results, seconds: float = float("inf")) -> int:
    """Measure the cases that the results lack, and begin none after so many seconds; returns how many are left."""
    end = machine.now() + seconds
    with machine.current():
        results.open_session(machine.facts())
        warm_clocks(machine)
        todo = [case for case in given if case.name not in results.done]
        todo.sort(key=lambda case: case.name in results.begun)
        left, stage, broken = len(todo), "", 0
        with progress_bar(left, True, "cases") as advance:
            for case in todo:
                if machine.now() >= end and left < len(todo):
                    break
                if case.stage != stage:
                    stage = case.stage
                    results.add_state({"stage": stage, **machine.state()})
                    print(f"{stage}: {left} cases to go", file=sys.stderr)
                problem = measured(machine, case, results)
                left -= 1
                advance(1)
                broken = broken + 1 if problem else 0
                if broken == _GIVE_UP:
                    raise RuntimeError(f"nothing works any more: {problem}")
        results.add_state({"stage": "end", **machine.state()})
    return left


def measured(machine: Machine, case: Case, results: Results) -> str:
    """Measure one case; returns why ours failed, or ""."""
    results.begin(case)
    try:
        rows = case.measure(machine)
    except Exception as error:  # The others may do without what this one lacks.
        machine.release()
        problem = f"{type(error).__name__}: {error}"
        results.end(case, [], problem)
        return problem
    problem = failures(rows)
    results.end(case, rows, problem)
    return problem


def warm_clocks(machine: Machine) -> None:
    """Keep the machine busy for CLOCK_WARM_UP seconds."""
    half = min(_WARM_UP_BYTES, machine.free_bytes() // 8) // 512 * 256
    arena = machine.empty(2 * half)
    end = machine.now() + CLOCK_WARM_UP
    while machine.now() < end:
        for _ in range(10):
            machine.copy(arena[half:], arena[:half])
        machine.synchronize()


def cases(machine: Machine, everyone: Sequence[Contender], results: Results) -> Iterator[Case]:
    """All, the most valuable first."""
    choose = quickest_copy(machine, results)

    def of(chosen: Iterable[PairCase]) -> Iterator[Case]:
        return (one.case(everyone, choose) for one in chosen if one.fits(machine.free_bytes()))

    yield from user_cases.cases()
    yield from map(copy_case, COPY_SIZES)
    yield from of(pairs.large())
    yield from of(pairs.calls())
    yield from quantize_cases.cases()
    yield from many_cases.cases()
    yield from of(pairs.all_pairs())
    yield from of(pairs.layouts())


def copy_case(moved: int) -> Case:
    """The system's copy and our copy kernels, moving so many bytes."""

    def ways(machine: Machine) -> tuple[float, Mapping[str, Any]]:
        count = rotation(machine, moved)
        kernels = {copy_name(unroll): machine.copy_kernel(unroll, unroll) for unroll in UNROLLS}
        return moved, {
            name: lambda copy=copy: Call(copies(machine, count, moved / 2, moved / 2, copy), count)
            for name, copy in {MEMCPY: machine.copy, **kernels}.items()
        }

    return Case("copies", f"copies: {moved / 2**20:g} MiB", ways, (MEMCPY,), samples=40, limit=0.1)


def quickest_copy(machine: Machine, results: Results) -> pairs.ChooseCopy:
    """A function that returns, for a number of bytes, the copy kernel that was quickest at the nearest size."""
    kernels = {copy_name(unroll): machine.copy_kernel(unroll, unroll) for unroll in UNROLLS}

    def choose(moved: float) -> Copy:
        timed = [row for row in results.rows("copies") if row.name in kernels and row.times]
        if not timed:
            return kernels[copy_name(UNROLLS[-1])]
        nearest = min(max(row.bytes / moved, moved / row.bytes) for row in timed)
        at_size = [row for row in timed if max(row.bytes / moved, moved / row.bytes) == nearest]
        return kernels[max(at_size, key=lambda row: row.speed).name]

    return choose
