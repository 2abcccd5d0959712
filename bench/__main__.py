# SPDX-License-Identifier: Apache-2.0
"""``python -m bench``: check results, then measure speed; by default on the GPU.

Each benchmark is a function of the arguments: it prints its tables and returns what ``--json`` writes; "failures" in
it, where there are some, make the exit code 1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu import run as gpu
from bench.host import casts as host
from bench.revision import FOLDER, code_digest, machine
from bench.static import check as static
from gpucast.kernel import devices

#: Option -> (what it does, the benchmark).
BENCHMARKS: dict[str, tuple[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "gpu": ("everything on the GPU, beside CuPy, PyTorch and others (the default)", gpu.run),
    "users": (
        "of --gpu: what users write, with PyTorch, CuPy and JAX",
        functools.partial(gpu.run, stages=("users",)),
    ),
    "quick": ("a few pairs on the GPU in 20 seconds, as a table", gpu.quick),
    "host": ("casts of NumPy arrays and CPU tensors beside astype and PyTorch, and strings", host.run),
    "static": ("what the machine code of every kernel says about its speed; needs no GPU", static.run),
}
#: What needs a GPU, and what keeps files of its results; the elements of arrays with --allow-cpu.
ON_GPU, KEPT, FEW = {"gpu", "users", "quick"}, {"gpu", "users"}, 1 << 18
#: The types that --quick measures on the host.
_QUICK_TYPES = ["FLOAT", "FLOAT16", "FLOAT8E4M3FN", "INT8"]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    chosen = [name for name in BENCHMARKS if getattr(arguments, name)] or ["gpu"]
    figures: dict[str, Any] = {"machine": machine()}
    problem = devices.unavailable() if ON_GPU.intersection(chosen) else None
    if problem is not None:
        if not arguments.allow_cpu:
            print(f"bench: no GPU to measure: {problem[0]}; {problem[1]}, or --allow-cpu", file=sys.stderr)
            return 1
        print(f"bench: no GPU to measure: {problem[0]}; what follows is of the host (device: none)", file=sys.stderr)
        arguments.elements = arguments.elements or [FEW]
        if chosen == ["quick"]:
            chosen = ["host"]
            arguments.src, arguments.dst = arguments.src or _QUICK_TYPES, arguments.dst or _QUICK_TYPES
        else:
            chosen = ["static", "host"]
            arguments.json = arguments.json or _unused(
                arguments.results, f"none-{figures['machine']['date']}-{code_digest()}"
            )
    folders = [arguments.results] if KEPT.intersection(chosen) else []
    folders += [arguments.json.parent] if arguments.json else []
    try:
        # Before the work, not after it.
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        print(f"bench: results cannot be written: {folder}: {error.strerror}", file=sys.stderr)
        return 1
    if not ON_GPU.intersection(chosen):
        figures["device"] = "none"
    for name in chosen:
        begin = time.perf_counter()
        try:
            figures[name] = BENCHMARKS[name][1](arguments)
        except (OSError, RuntimeError, ValueError) as error:
            # The others may do without what this one lacks.
            print(f"bench: {name}: {error}", file=sys.stderr)
            figures[name] = {"failures": [str(error)]}
        print(f"\n{name}: {time.perf_counter() - begin:.0f} s")
    if arguments.json:
        # A row of figures is a line.
        text = re.sub(r"\n {4,}|\n {3}(?=[]}])", "", json.dumps(figures, indent=1))
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return int(any(figures[name].get("failures") for name in chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Check results, then measure speed.")
    for name, (text, _) in BENCHMARKS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--allow-cpu", action="store_true", help="without a GPU run the parts that need none (device: none)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument(
        "--elements",
        type=_count,
        nargs="+",
        metavar="N",
        help=f"elements of an array (default: with --quick {gpu.ELEMENTS}, on the host "
        f"{', '.join(map(str, host.SIZES))}, with --allow-cpu {FEW})",
    )
    parser.add_argument("--repeats", type=_count, default=5, help="interleaved runs; the fastest counts (default: 5)")
    parser.add_argument("--src", nargs="+", default=[], metavar="TYPE", help="only these source types")
    parser.add_argument("--dst", nargs="+", default=[], metavar="TYPE", help="only these destination types")
    where = "folder of results (default: bench/results)"
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER", help=where)
    static.add_arguments(parser)
    return parser


def _count(text: str) -> int:
    """An integer above 0, such as 4096 or 1e6."""
    number = int(float(text))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count; expected 1 or more")
    return number


def _unused(folder: Path, stem: str) -> Path:
    """A file that does not exist yet: results are never overwritten."""
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (folder / f"{stem}{end}.json" for end in ends)
    return next(path for path in paths if not path.exists())


if __name__ == "__main__":
    sys.exit(main())
