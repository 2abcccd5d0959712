# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --host``: check, then time.

Each benchmark is a module with ``run(arguments) -> dict``: it prints its tables and returns what ``--json`` writes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bench import host

#: Option -> (what it does, the benchmark).
BENCHMARKS: dict[str, tuple[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "host": ("gpucast.cast on NumPy arrays beside astype, and strings", host.run),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Check results, then measure speed.")
    for name, (text, _) in BENCHMARKS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--elements", type=_count, default=1 << 24, help="elements of an array (default: 16 M)")
    parser.add_argument("--repeats", type=_count, default=5, help="interleaved runs; the fastest counts (default: 5)")
    parser.add_argument("--src", nargs="+", default=[], metavar="TYPE", help="only these source types")
    parser.add_argument("--dst", nargs="+", default=[], metavar="TYPE", help="only these destination types")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    arguments = parser.parse_args()
    chosen = [name for name in BENCHMARKS if getattr(arguments, name)]
    if not chosen:
        parser.error(f"nothing to do; expected one of {', '.join(f'--{name}' for name in BENCHMARKS)}")
    figures: dict[str, Any] = {"machine": _machine()}
    for name in chosen:
        begin = time.perf_counter()
        figures[name] = BENCHMARKS[name][1](arguments)
        print(f"\n{name}: {time.perf_counter() - begin:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def _count(text: str) -> int:
    """An integer above 0, such as 4096 or 1e6."""
    number = int(float(text))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count; expected 1 or more")
    return number


def _machine() -> dict[str, str]:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        name = next((line.split(":")[1].strip() for line in cpuinfo.open() if line.startswith("model name")), name)
    return {
        "processor": name,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that is measured, with a + when the checkout has changes; "" outside a checkout."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+"]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
