# SPDX-License-Identifier: Apache-2.0
"""Every rule of every pair on the GPU, a line for each: ``python -m bench.gpu_parity --lines FILE``.

Compares what `gpucast parity --full` does, for so many seconds, taking the pairs in turn. A later run with the same
file continues, and the report and the picture then cover both. For all codes of FLOAT see `bench.gpu_sweeps`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu_lines import Lines, session
from gpucast.cli.arguments import count, positive
from gpucast.parity import picture, plan, work
from gpucast.parity.backends import BACKENDS
from gpucast.parity.cases import Case
from gpucast.parity.compare import CaseResult, Mismatch
from gpucast.parity.report import ParityReport

#: Random codes of wide sources for each rule.
RANDOM = 200_000
#: The share of a destination's midpoints, as in `gpucast parity --full`.
_SHARE = 1.0


def planned(seed: int = 0) -> list[Case]:
    """All rules; those of the default attributes come first."""
    return plan.shuffled(plan.all_cases(plan.all_pairs()), seed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_parity", description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=Path, metavar="FILE", help="where each rule gets its line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result of every pair")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the grid of pairs as SVG")
    parser.add_argument("--seconds", type=positive, metavar="S", help="stop after about S seconds")
    parser.add_argument("--random", type=count, default=RANDOM, metavar="N", help="random codes of wide sources")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 16), metavar="N")
    parser.add_argument("--backend", choices=tuple(BACKENDS), default="gpu")
    arguments = parser.parse_args(argv)
    return compare(arguments, planned())


def compare(arguments: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Compare the cases that the log does not have yet, and report all."""
    begin = time.monotonic()
    lines = Lines(arguments.lines)
    lines.plan(map(str, cases))
    earlier = [_outcome(case, line) for case in cases if (line := lines.finished.get(str(case))) is not None]
    backend = BACKENDS[arguments.backend]()
    rest = [case for case in cases if str(case) not in lines.finished]
    outcomes = work.run(
        backend, rest, seed=0, share=_SHARE, random=arguments.random, threads=arguments.threads,
        seconds=arguments.seconds, on_result=lambda outcome: _write(lines, outcome),
    )  # fmt: skip
    report = ParityReport(
        backend=backend.name,
        device=backend.device,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        seed=0,
        seconds=time.monotonic() - begin,
        mode="all",
        what=f"every code of types of 16 bits or fewer, hard values and {arguments.random:,} random ones of wider",
        planned=len(cases),
        outcomes=[*earlier, *outcomes],
    )
    if arguments.json is not None:
        found = report.as_json() | {"run": session(), "resumed": len(earlier), "unfinished": _unfinished(report, cases)}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if arguments.picture is not None:
        arguments.picture.write_text(picture.svg(report), encoding="utf-8")
    print(report.text())
    if report.first is not None:
        print(f"gpu_parity: {report.first}", file=sys.stderr)
    return int(report.first is not None)


def _unfinished(report: ParityReport, cases: Sequence[Case]) -> list[str]:
    tried = {str(outcome.case) for outcome in report.outcomes}
    return [str(case) for case in cases if str(case) not in tried]


def _write(lines: Lines, outcome: CaseResult) -> None:
    first = outcome.first
    more: dict[str, Any] = {}
    if first is not None:
        more = {"index": first.index, "bits": first.bits, "wanted": first.wanted, "got": first.got}
    lines.done(str(outcome.case), str(first or ""), elements=outcome.elements, wrong=outcome.wrong, **more)


def _outcome(case: Case, line: dict[str, Any]) -> CaseResult:
    """The result that an earlier run logged."""
    wrong = int(line["wrong"])
    first = Mismatch(case, *(int(line[name]) for name in ("index", "bits", "wanted", "got"))) if wrong else None
    return CaseResult(case, int(line["elements"]), wrong, first)


if __name__ == "__main__":
    sys.exit(main())
