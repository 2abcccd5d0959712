# SPDX-License-Identifier: Apache-2.0
"""`gpucast bench`: the benchmark of the checkout that gpucast is installed from."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def add(commands: Any) -> None:
    # All options are the benchmark's own: none of them begins with this character, so that they reach it as they are.
    parser = commands.add_parser(
        "bench", help="measure the speed of casts (needs a checkout)", prefix_chars="\0", add_help=False
    )
    parser.add_argument("options", nargs="*", metavar="...")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """`python -m bench` with the same options; without any, a few pairs in 20 seconds."""
    if not (_ROOT / "bench" / "__main__.py").is_file():
        raise RuntimeError(
            "the benchmark is no part of the installed package: in a checkout of gpucast run "
            "pip install -e '.[bench]', then gpucast bench, or python -m bench"
        )
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    benchmark = importlib.import_module("bench.__main__")
    chosen = {f"--{name}" for name in benchmark.BENCHMARKS}.intersection(args.options)
    code: int = benchmark.main(args.options if chosen else ["--quick", *args.options])
    return code
