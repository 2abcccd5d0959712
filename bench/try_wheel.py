# SPDX-License-Identifier: Apache-2.0
"""Install a wheel with each Python in turn and use it: ``python bench/try_wheel.py dist/gpucast-*.whl python3.10 ...``.

Each gets an environment of its own, outside of the checkout and with a PATH on which there is no compiler. There the
wheel casts and quantizes with the loops of each level that it has, converts a file, compares casts with the reference
and answers ``gpucast info``. With ``--extra cuda12`` or ``cuda13`` it also compiles a kernel. No GPU is needed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

#: What a newcomer's script does.
SCRIPT = """
import os, shutil, subprocess, sys
import numpy as np, gpucast
from gpucast.core.extension import MODULE
assert not any(map(shutil.which, ("c++", "g++", "clang++", "cc"))), "there is a compiler"
assert MODULE is not None, "the wheel has no extension module for this Python"
x = np.float32([0.1, 464.0, 1e9, -np.inf])
assert gpucast.cast(x, "FLOAT8E4M3FN").astype(np.float32).tolist() == [0.1015625, 448, 448, -448]
q = gpucast.quantize(np.ones((4, 64), np.float32), "mxfp4")
assert (q.dequantize() == 1).all()
gpucast.save("x.npz", {"x": x, "q": q})
assert gpucast.load("x.npz")["q"].data.tobytes() == q.data.tobytes()
version = sys.version.split()[0]
print(f"Python {version}, NumPy {np.__version__}, gpucast {gpucast.__version__}, loops {MODULE.LEVEL}", flush=True)
if "GPUCAST_HOST_LEVEL" not in os.environ:
    for level in MODULE.LEVELS[MODULE.LEVELS.index(MODULE.LEVEL) + 1 :]:
        subprocess.run([sys.executable, __file__], env=os.environ | {"GPUCAST_HOST_LEVEL": level}, check=True)
"""
COMMANDS = (
    "gpucast convert x.npz y.safetensors --include x --to BFLOAT16 --overwrite --quiet",
    "gpucast parity --backend host --pair FLOAT:FLOAT8E4M3FN --random 10000",
    "gpucast info",
)
KERNEL = "gpucast kernel FLOAT INT4 --arch sm_90 --emit cubin -o k.cubin"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python bench/try_wheel.py", description="Install a wheel and use it.")
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="a wheel of gpucast")
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreters, such as python3.10")
    parser.add_argument("--extra", metavar="NAME", help="an extra of the package, such as cuda12")
    given = parser.parse_args(argv)
    failed = [python for python in given.pythons if not tried(python, given.wheel.resolve(), given.extra)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def tried(python: str, wheel: Path, extra: str | None) -> bool:
    """Whether everything works; the first command that fails is printed with what it says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", what]
        bin_folder = folder / "venv" / "bin"
        # None of the system's programs: no compiler can be found.
        alone = dict(os.environ) | {"PATH": str(bin_folder)}
        script = folder / "script.py"
        script.write_text(SCRIPT, encoding="utf-8")
        steps = [
            ([python, "-m", "venv", str(folder / "venv")], dict(os.environ)),
            ([str(bin_folder / "python"), *install], alone),
            ([str(bin_folder / "python"), str(script)], alone),
        ]
        for line in (*COMMANDS, *([KERNEL] if extra else [])):
            program, *words = line.split()
            steps.append(([str(bin_folder / program), *words], alone))
        for command, environment in steps:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                words = [Path(command[0]).name, *command[1:4]]
                print(f"{python}: {' '.join(words)}: exit {done.returncode}", file=sys.stderr)
                print(done.stdout + done.stderr, file=sys.stderr)
                return False
            if command[-1] == str(script):
                print(done.stdout.strip(), flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
