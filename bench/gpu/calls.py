# SPDX-License-Identifier: Apache-2.0
"""Measures a list of cases and their rivals on the GPU, for the parts `many` and `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu_lines import Lines as Written
from bench.cases.contenders import Contender, available
from bench.timing.gpu_machine import GpuMachine
from bench.timing.machine import Machine

Lines = list[dict[str, Any]]


def run(
    cases: Sequence[Any],
    kinds: Sequence[type[Contender]],
    measure_case: Callable[..., Lines],
    report: Callable[[Lines], None],
    path: Path | None = None,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Measure all cases and print them: first ours and copies, then again with the rivals, which may compile.

    `path`: a file (`bench.gpu_lines`) that gets every case as it is measured; cases that it has are not measured again.
    """
    machine = machine or GpuMachine()
    written = Written(path)
    tasks = {f"{case}, {stage}": (case, stage) for stage in ("ours", "rivals") for case in cases}
    written.plan(tasks)
    # For a case that is measured twice the later lines count.
    found: dict[str, Lines] = {}
    with machine.current():
        rivals = available(kinds, machine)
        for name, (case, stage) in tasks.items():
            if name in written.finished:
                found[str(case)] = written.finished[name]["lines"]
                continue
            written.begin(name)
            if stage == "rivals" and not any(rival.has(case) for rival in rivals):  # type: ignore[attr-defined]
                written.done(name, lines=found[str(case)])
                continue
            lines = found[str(case)] = measure_case(machine, case, rivals if stage == "rivals" else [])
            report(lines)
            written.done(name, "; ".join(filter(None, (line.get("problem") for line in lines))), lines=lines)
        state = machine.state()
    every = [line for lines in found.values() for line in lines]
    failures = [f"{line['case']}, {line['name']}: {line['problem']}" for line in every if line.get("problem")]
    return {"facts": machine.facts(), "state": state, "lines": every, "failures": failures}
