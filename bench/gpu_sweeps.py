# SPDX-License-Identifier: Apache-2.0
"""All 2^32 codes of FLOAT for narrow destinations, one after the other: ``python -m bench.gpu_sweeps --lines FILE``.

Logs a line for each destination, for each sixteenth of it, and at once for each difference. A later run with the same
file skips what is done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu_lines import Lines
from gpucast.cli.arguments import positive
from gpucast.core.dtypes import dtype
from gpucast.parity.backends import BACKENDS, CastBackend
from gpucast.parity.cases import Case, cases
from gpucast.parity.sweep import sweep

SOURCE = "FLOAT"
#: The most important first.
DESTINATIONS = tuple(
    "FLOAT8E4M3FN FLOAT16 BFLOAT16 FLOAT4E2M1 FLOAT8E5M2 FLOAT8E8M0 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ".split()
)
#: Lines of progress for each destination.
_PARTS = 16


def planned(source: str = SOURCE) -> list[Case]:
    """The rules of the default attributes."""
    return [cases(dtype(source), dtype(dst))[0] for dst in DESTINATIONS]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_sweeps", description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=Path, metavar="FILE", help="where each destination gets its lines")
    parser.add_argument("--seconds", type=positive, metavar="S", help="begin no destination after S seconds")
    parser.add_argument("--source", default=SOURCE, help=f"another type than {SOURCE}")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 16), metavar="N")
    parser.add_argument("--backend", choices=tuple(BACKENDS), default="gpu")
    arguments = parser.parse_args(argv)
    begin = time.monotonic()
    lines, backend = Lines(arguments.lines), BACKENDS[arguments.backend]()
    chosen = planned(arguments.source)
    lines.plan(map(str, chosen))
    wrong = 0
    for case in chosen:
        if str(case) in lines.finished:
            continue
        if arguments.seconds is not None and time.monotonic() - begin >= arguments.seconds:
            break
        wrong += _one(backend, case, lines, arguments.threads)
    return int(wrong > 0)


def _one(backend: CastBackend, case: Case, lines: Lines, threads: int) -> int:
    begin, total, done = time.monotonic(), 1 << case.rule.src.bits, 0
    lines.begin(str(case))

    def advance(codes: int) -> None:
        nonlocal done
        before, done = done, done + codes
        if before * _PARTS // total < done * _PARTS // total:
            lines.write("codes", name=str(case), compared=done, of=total)

    outcome = sweep(
        backend, case, threads=threads, advance=advance,
        differs_at=lambda mismatch: lines.write("differs", name=str(case), at=str(mismatch)),
    )  # fmt: skip
    seconds = time.monotonic() - begin
    lines.done(str(case), str(outcome.first or ""), elements=outcome.elements, wrong=outcome.wrong, seconds=seconds)
    print(f"{case}: {outcome.elements:,} codes in {seconds:.1f} s, {outcome.wrong:,} differ", flush=True)
    return outcome.wrong


if __name__ == "__main__":
    sys.exit(main())
