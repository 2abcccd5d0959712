# SPDX-License-Identifier: Apache-2.0
"""Try a wheel as a user would get it: ``python -m bench.try_wheel dist/gpucast-*.whl --python python3.11 python3.13``.

For each Python, and each CUDA major with it, a new virtual environment outside the checkout takes the wheel with its
extra. There gpucast is imported, an array cast, a file converted, and a kernel compiled for sm_90. No GPU is needed.
Exit code 1 where a step fails; the other environments are tried all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: Run in the new environment, in an empty folder: what the names of the steps say.
_CAST = """
import numpy as np, gpucast
x = np.array([0.1, 464, 1e9, -np.inf, np.nan], np.float32)
y = gpucast.cast(x, "FLOAT8E4M3FN").astype(np.float32)
np.testing.assert_array_equal(y, np.array([0.1015625, 448, 448, -448, np.nan], np.float32))
np.save("x.npy", x)
assert (gpucast.quantize(np.ones((4, 64), np.float32), "mxfp4").dequantize() == 1).all()
"""
_CONVERTED = """
from gpucast import files
assert files.load("y.npz")["x"].dtype.name == "bfloat16"
"""
_CUBIN = "assert open('k.cubin', 'rb').read(4) == b'\\x7fELF'"


#: Name -> a program of the environment, and its arguments. A later step reads what an earlier one wrote.
STEPS = {
    "import": ("python", "-c", "import gpucast"),
    "cast": ("python", "-c", _CAST),
    "convert": ("gpucast", "convert", "x.npy", "y.npz", "--to", "BFLOAT16", "--quiet"),
    "what was converted": ("python", "-c", _CONVERTED),
    "kernel": ("gpucast", "kernel", "FLOAT", "INT4", "--arch", "sm_90", "--emit", "cubin", "-o", "k.cubin"),
    "cubin": ("python", "-c", _CUBIN),
    "info": ("gpucast", "info"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.try_wheel", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters (default: this one)")
    parser.add_argument("--cuda", nargs="+", default=["12", "13"], choices=("12", "13"), help="default: both")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve()
    failed = 0
    for python in arguments.python:
        for cuda in arguments.cuda:
            with tempfile.TemporaryDirectory() as folder:
                print(f"{version_of(python)}, cuda{cuda}: ", end="", flush=True)
                problem = trial(python, f"{wheel}[cuda{cuda}]", Path(folder))
            print(problem or f"installed; {', '.join(STEPS)}: well", flush=True)
            failed += problem is not None
    return int(failed > 0)


def version_of(python: str) -> str:
    return run([python, "--version"], Path.cwd()).stdout.strip()


def trial(python: str, requirement: str, folder: Path) -> str | None:
    """The first step that fails in a new environment, with what it said; None where all goes well."""
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    install = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    made = run([python, "-m", "venv", str(folder / "venv")], folder)
    if made.returncode:
        return _failure("venv", made)
    for name, (program, *rest) in {"install": install, **STEPS}.items():
        done = run([str(programs / program), *rest], folder)
        if done.returncode:
            return _failure(name, done)
    return None


def _failure(name: str, done: subprocess.CompletedProcess[str]) -> str:
    return f"FAILED at {name}: {(done.stderr or done.stdout).strip()[-2000:]}"


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # Neither the checkout nor another environment may be what is imported.
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"GPUCAST_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
