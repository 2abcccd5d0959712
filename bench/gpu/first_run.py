# SPDX-License-Identifier: Apache-2.0
"""The program behind bench/gpu.sh: everything that needs a GPU, step by step, the most valuable first.

Each step writes to files in bench/results as it works. A second run of the same code leaves out the steps that passed,
and the benchmark goes on where it ended.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.gpu import sweep
from bench.report.results import FOLDER, slug
from bench.revision import ROOT, code_digest, commit
from gpucast.gpu import devices

#: Narrow destinations of FLOAT of which all 2^32 codes are tried, the most important first.
SWEPT = "FLOAT8E4M3FN FLOAT16 BFLOAT16 FLOAT4E2M1 FLOAT8E5M2 FLOAT8E8M0 FLOAT8E4M3FNUZ FLOAT8E5M2FNUZ".split()
TOOLS = ("memcheck", "racecheck", "initcheck")
#: The last line of the log of a step that need not be run again.
_PASSED = "== passed"


def steps(folder: Path, stem: str) -> Iterator[tuple[str, list[str]]]:
    """The name of each step, and its command; without a command what it needs is missing."""
    python, results = sys.executable, ["--results", str(folder)]
    yield "users", [python, "-m", "bench", "--users", *results]
    # Only files with tests of the GPU, because others may import packages that are not installed here.
    tests = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    # Other versions of packages may emit warnings, which must not be errors.
    yield "tests", [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default", *tests]
    yield "bench", [python, "-m", "bench", *results]
    figures = str(folder / f"parity-{stem}")
    yield "parity", [python, "-m", "gpucast", "parity", "--full", "--backend", "gpu", "--random", "200000",
                     "--json", f"{figures}.json", "--picture", f"{figures}.svg"]  # fmt: skip
    yield "layouts", [python, "-m", "bench.gpu.sweep"]
    for dst in SWEPT:
        yield f"codes-{dst}", [python, "-m", "gpucast", "parity", "--exhaustive", "--defaults-only", "--backend", "gpu",
                               "--pair", f"FLOAT:{dst}"]  # fmt: skip
    found = sanitizer()
    for tool in TOOLS:
        # Not the kernels of CuPy and CUDA.
        command = [found, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kns=gpucast_"]
        yield tool, [*command, python, "-m", "bench.gpu.sweep", "--launches", str(sweep.KERNELS)] if found else []


def sanitizer() -> str:
    """compute-sanitizer, or ""."""
    wheels = (f"{folder}/nvidia/**/compute-sanitizer" for folder in sys.path if folder)
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    return found or next((path for pattern in wheels for path in glob.glob(pattern, recursive=True)), "")


def main() -> int:
    problem = devices.unavailable()
    if problem is not None:
        print(f"bench/gpu.sh: there is no GPU that gpucast can use: {problem[0]}; {problem[1]}", file=sys.stderr)
        return 1
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    folder = Path(os.environ.get("RESULTS") or FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    return run(folder, f"gpu-{slug(name)}-{code_digest()}")


def run(folder: Path, stem: str) -> int:
    """Every step that has not passed yet; the exit code is 1 where one fails or cannot run."""
    summary, failed = [], False
    for name, command in steps(folder, stem):
        log = folder / f"{name}-{stem}.log"
        if log.exists() and log.read_text(encoding="utf-8", errors="replace").rstrip().endswith(_PASSED):
            summary.append(f"{name}: passed earlier, not run again")
            continue
        if not command:
            word = "LEFT OUT, compute-sanitizer is not on PATH, in /usr/local/cuda/bin or in a wheel"
        else:
            code = _logged(command, log)
            word = "passed" if code == 0 else f"FAILED ({code}), see {log}"
        failed = failed or word != "passed"
        summary.append(f"{name}: {word}")
        print(f"== {summary[-1]}", flush=True)
    print("\n".join(["== summary", *summary]), flush=True)
    return int(failed)


def _logged(command: list[str], log: Path) -> int:
    """Run a command; its output is shown, and written at once behind what the log has."""
    print(f"== {' '.join(command)}", flush=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"== {' '.join(command)} (commit {commit()})\n")
        file.flush()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
            file.flush()
        code = process.wait()
        file.write(f"{_PASSED}\n" if code == 0 else f"== FAILED ({code})\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
