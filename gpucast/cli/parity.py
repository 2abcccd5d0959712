# SPDX-License-Identifier: Apache-2.0
"""`gpucast parity`: compares the GPU, or the host build of its kernels, with the reference, bit for bit."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.progress import progress_bar
from gpucast.kernel.cxx import CompilerMissing
from gpucast.parity import compare
from gpucast.parity.backends import CastBackend, backend
from gpucast.parity.cases import all_cases, all_pairs, shuffled
from gpucast.parity.report import Mode, ParityReport, proved_pairs, svg
from gpucast.parity.sweep import sweep

_DESCRIPTION = """\
Compare casts with the exact reference, bit for bit. Types of 16 bits or fewer are tried with every code, wider types
with the values next to which the result changes, and with random codes.
Without --full, --pair or --exhaustive the command tries a seeded sample of pairs and attributes for 10 seconds.
The exit code is 1 if anything differs."""

#: Per rule: the number of random codes of a wide source, and the share of the destination's midpoints that are tried.
_SAMPLE, _ALL = (20_000, 1 / 16), (1_000_000, 1.0)

_SCOPE = """\
--full  try every rule of every pair
--exhaustive  try all 2^32 codes of the 32-bit sources of the chosen pairs
--seconds S  how long to try a sample (default: 10)
"""
_OPTIONS = f"""\
--pair SRC:DST ...  try this pair in full (may be repeated)
--defaults-only  try only the default attributes
--backend gpu|kernels|host  what to compare: casts on the GPU, the GPU's kernels built as host code, or casts of host
    arrays (default: gpu if there is one, else kernels)
--random N  number of random codes of a wide source (default: {_ALL[0]:,}; in a sample {_SAMPLE[0]:,})
--seed N = 0  seed of the sample and of random codes (default: 0)
--threads N  number of threads (default: one per processor, at most 16)
--json FILE  write the result of every pair
--picture FILE  write the grid of pairs as SVG
--proof FILE ...  mark the pairs whose every rule is proved by this certificate of `python -m tests.proof` (may be
    repeated)
--no-progress  draw no progress bar
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "parity",
        help="compare casts with the exact reference",
        description=_DESCRIPTION,
    )
    arguments.add_options(parser.add_mutually_exclusive_group(), _SCOPE, {"S": arguments.positive})
    arguments.add_options(
        parser, _OPTIONS, {"SRC:DST": arguments.pair, "N": arguments.count, "--threads": arguments.at_least_one}
    )
    parser.set_defaults(run=run, wrong_usage=parser.error)


def run(args: argparse.Namespace) -> int:
    _check(args)
    with arguments.created(args.json) as json_file, arguments.created(args.picture) as picture_file:
        try:
            report = _compare(args, backend(args.backend))
        except CompilerMissing as missing:
            raise ValueError(f"{missing}; or compare casts on the host: gpucast parity --backend host") from None
        if json_file is not None:
            json_file.write(json.dumps(report.as_json(), indent=1).encode() + b"\n")
        if picture_file is not None:
            proved = proved_pairs([json.loads(Path(path).read_text(encoding="utf-8")) for path in args.proof])
            picture_file.write(svg(report, proved).encode())
    print(report.text())
    if len(report.outcomes) < report.planned:
        print("a seeded sample; --full tries all")
    if report.first is None:
        return 0
    print(f"gpucast parity: {report.first}", file=sys.stderr)
    return 1


def _check(args: argparse.Namespace) -> None:
    pairs = args.pair
    if args.full and pairs:
        args.wrong_usage("--full tries every pair: leave out --pair")
    if args.seconds is not None and pairs:
        args.wrong_usage("--seconds limits a sample, but the pairs of --pair are tried in full: leave out one of them")
    if args.exhaustive:
        if not pairs:
            args.wrong_usage("--exhaustive needs --pair: all pairs would take days")
        for src, dst in pairs:
            if src.bits > 32:
                args.wrong_usage(
                    f"--exhaustive: {src}:{dst} has 2^{src.bits} codes; expected a source of 32 bits or fewer"
                )
    if args.json is not None and args.json == args.picture:
        args.wrong_usage("--json and --picture are the same file")


def _compare(args: argparse.Namespace, chosen: CastBackend) -> ParityReport:
    sample = not (args.full or args.exhaustive or args.pair)
    mode: Mode = "sample" if sample else "exhaustive" if args.exhaustive else "all"
    pairs = list(dict.fromkeys(args.pair)) if args.pair else all_pairs()
    cases = all_cases(pairs, args.defaults_only)
    if sample:
        cases = shuffled(cases, args.seed)
    random, share = _SAMPLE if sample else _ALL
    random = random if args.random is None else args.random
    given: dict[str, Any] = {"threads": _workers(args), "seed": args.seed}
    begin = time.monotonic()
    if args.exhaustive:
        what, total = "every code", sum(1 << case.rule.src.bits for case in cases)
        with progress_bar(total, not args.no_progress, "codes") as advance:
            outcomes = [sweep(chosen, case, advance=advance, **given) for case in cases]
    else:
        what = f"every code of types of 16 bits or fewer, hard values and {random:,} random ones of wider"
        given |= {"share": share, "random": random, "seconds": (args.seconds or 10.0) if sample else None}
        with progress_bar(len(cases), not args.no_progress, "rules") as advance:
            outcomes = compare.run(chosen, cases, on_result=lambda _: advance(1), **given)
    return ParityReport(
        backend=chosen.name,
        device=chosen.device,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        seed=args.seed,
        seconds=time.monotonic() - begin,
        mode=mode,
        what=what,
        planned=len(cases),
        outcomes=outcomes,
    )


def _workers(args: argparse.Namespace) -> int:
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    processors = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return int(args.threads or min(processors, 16))
