# SPDX-License-Identifier: Apache-2.0
"""Measures what `gpucast bench --quick` does, and logs a line per pair: ``python -m bench.gpu_quick --lines FILE``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import gpucast
from bench.gpu_lines import Lines, session
from gpucast.benchmark import quick
from gpucast.benchmark.contenders import Contender, contenders
from gpucast.benchmark.gpu import GpuMachine
from gpucast.benchmark.machine import Machine
from gpucast.benchmark.pairs import Measurement
from gpucast.cli.arguments import positive

ELEMENTS = 1 << 26


def main(
    argv: Sequence[str] | None = None, machine: Machine | None = None, there: Sequence[Contender] | None = None
) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_quick", description=__doc__)
    parser.add_argument("--lines", type=Path, metavar="FILE", help="where each pair gets its line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument("--seconds", type=positive, default=20.0, metavar="S", help="take about S seconds")
    parser.add_argument("--elements", type=int, default=ELEMENTS, metavar="N", help="of an array")
    arguments = parser.parse_args(argv)
    machine = machine or GpuMachine()
    lines = Lines(arguments.lines)
    lines.plan(f"{src} to {dst}" for src, dst in quick.PAIRS)

    def found(rows: list[Measurement]) -> None:
        wrong = [
            measurement.problem or measurement.first
            for measurement in rows
            if measurement.is_ours and (measurement.wrong or measurement.problem)
        ]
        lines.done(
            f"{rows[0].src} to {rows[0].dst}", "; ".join(wrong), rows=[measurement.as_json() for measurement in rows]
        )

    there = contenders(machine) if there is None else there
    report = quick.run(machine, there, quick.PAIRS, arguments.elements, arguments.seconds, on_measured=found)
    if arguments.json is not None:
        figures = {"gpucast": gpucast.__version__, "run": session(), **report.as_json()}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(quick.text(report))
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
