# SPDX-License-Identifier: Apache-2.0
"""The parts of a run on a GPU, as data: what each part starts, its time limit, and how that was estimated.

The limits are for 16 cores and one H200 within calls of 570 s, and are not based on measurements on a GPU. Time that a
part does not use is available to the later parts.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import gpu_sweep
from bench.revision import ROOT

#: Processes of the tests, each with a context on the GPU.
_TEST_PROCESSES = 8
#: Seconds of a part's limit that are not available for its own work: starting (CUDA, CuPy), and writing reports.
_START, _REPORTS = 15, 25
#: Seconds in which the sanitizer instruments CUDA's own modules at the start.
_SANITIZER_START = 20
TOOLS = ("memcheck", "racecheck", "initcheck")


@dataclass(frozen=True)
class Step:
    """A process: Python with the arguments `command`, prefixed by `before`. `lines`: the log that it writes."""

    name: str
    command: Sequence[str]
    lines: Path | None = None
    before: Sequence[str] = ()


@dataclass(frozen=True)
class RunFiles:
    """The folder and the names of a run's files."""

    folder: Path
    #: The GPU, such as "nvidia-h200"; the date; the digest of the code.
    gpu: str
    date: str
    code: str

    def file(self, kind: str, suffix: str) -> Path:
        """The file to continue, which may be of an earlier day, or a new one."""
        found = sorted(self.folder.glob(f"{kind}-gpu-{self.gpu}-*-{self.code}{suffix}"))
        return found[-1] if found else self.folder / f"{kind}-gpu-{self.gpu}-{self.date}-{self.code}{suffix}"


@dataclass(frozen=True)
class Part:
    """A part of a run. `steps` gets the run's files and the seconds that the part has."""

    name: str
    #: The call of bench/gpu.sh that it belongs to.
    call: str
    seconds: int
    reckoned: str
    steps: Callable[[RunFiles, float], list[Step]]


class LeftOut(Exception):
    """Why a part cannot run here."""


def _tests(files: RunFiles, seconds: float) -> list[Step]:
    # Only files with GPU tests, because others may import packages that are not installed here.
    with_tests = [
        path for path in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    lines = files.file("tests", ".jsonl")
    command = ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "bench.pytest_lines"]
    # Other versions of packages may emit warnings, which must not be errors.
    command += ["--lines", str(lines), "-W", "default", "--continue-on-collection-errors"]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(_TEST_PROCESSES)]
    return [Step("tests", [*command, *(path.relative_to(ROOT).as_posix() for path in with_tests)], lines)]


def _parity(files: RunFiles, seconds: float) -> list[Step]:
    lines = files.file("parity", ".jsonl")
    command = ["-m", "bench.gpu_parity", "--lines", str(lines), "--seconds", _own(seconds, _START)]
    command += ["--json", str(files.file("parity", ".json")), "--picture", str(files.file("parity", ".svg"))]
    if os.environ.get("GPU_RANDOM"):
        command += ["--random", os.environ["GPU_RANDOM"]]
    return [Step("parity", command, lines)]


def _layouts(files: RunFiles, seconds: float) -> list[Step]:
    lines = files.file("layouts", ".jsonl")
    command = ["-m", "bench.gpu_sweep", "--lines", str(lines), "--seconds", _own(seconds, _START)]
    return [Step("layouts", command, lines)]


def _sweeps(files: RunFiles, seconds: float) -> list[Step]:
    lines = files.file("sweeps", ".jsonl")
    command = ["-m", "bench.gpu_sweeps", "--lines", str(lines), "--seconds", _own(seconds, _START)]
    return [Step("sweeps", command, lines)]


def _sanitizer(files: RunFiles, seconds: float) -> list[Step]:
    sanitizer, option = _find_sanitizer()
    steps = []
    for tool in TOOLS:
        lines = files.file(tool, ".jsonl")
        # Its time limit counts from the first launch, without the start.
        own = _own(seconds / len(TOOLS), _SANITIZER_START)
        command = ["-m", "bench.gpu_sweep", "--lines", str(lines), "--seconds", own]
        command += ["--launches", str(gpu_sweep.KERNELS)]
        # Do not check the kernels of CuPy and CUDA.
        before = [sanitizer, "--tool", tool, "--error-exitcode", "9", option, "kns=gpucast_"]
        steps.append(Step(tool, command, lines, before))
    return steps


def _find_sanitizer() -> tuple[str, str]:
    """compute-sanitizer, and its option that names kernels."""
    wheels = (f"{folder}/nvidia/**/compute-sanitizer" for folder in sys.path if folder)
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    found = found or next((path for pattern in wheels for path in glob.glob(pattern, recursive=True)), None)
    if found is None:
        raise LeftOut("compute-sanitizer is not on PATH, in /usr/local/cuda/bin or in a wheel")
    try:
        help_text = subprocess.run([found, "--help"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"{found} does not start: {error}") from None
    # Its name before 2024.
    return (
        found,
        "--kernel-regex" if "--kernel-regex" in help_text and "--kernel-name" not in help_text else "--kernel-name",
    )


def _quick(files: RunFiles, seconds: float) -> list[Step]:
    lines = files.file("quick", ".jsonl")
    command = ["-m", "bench.gpu_quick", "--lines", str(lines), "--json", str(files.file("quick", ".json"))]
    return [Step("quick", [*command, "--seconds", str(min(20, int(_own(seconds, 10))))], lines)]


def _cases(kind: str) -> Callable[[RunFiles, float], list[Step]]:
    def steps(files: RunFiles, seconds: float) -> list[Step]:
        lines = files.file(kind, ".jsonl")
        command = ["-m", "bench", f"--{kind}", "--lines", str(lines), "--json", str(files.file(kind, ".json"))]
        return [Step(kind, command, lines)]

    return steps


def _bench(files: RunFiles, seconds: float) -> list[Step]:
    lines = files.file("bench", ".jsonl")
    command = ["-m", "bench", "--results", str(files.folder), "--lines", str(lines)]
    return [Step("bench", [*command, "--budget-s", _own(seconds, _START + _REPORTS)], lines)]


def _own(seconds: float, overhead: int) -> str:
    """The seconds of a part for its own work: without the overhead, but at least half of them."""
    return f"{max(seconds - overhead, seconds / 2, 1.0):.0f}"


#: The seconds of each call in which the pool compiles. Kernels that it does not reach are compiled by the parts.
#: The first: 1,075 plain casts 138, 650 quantization kernels 340 (323 of tiles), 46 fused ones 9, and parity's 1,611
#: others 294 processor seconds: 781 / 16 = 49 s; the start of 16 processes 5 s. The second: 700 plain casts 90,
#: quantize's 55 kernels 23, many's 6 kernels 3 processor seconds: 8 s; CuPy's casts of 169 pairs, 3 kernels each at
#: 0.4 s, 203 / 16 = 13 s; the start of 16 CUDA contexts 10 s.
COMPILE = {"first": 80, "second": 50}

#: The most important first.
PARTS = (
    Part(
        "tests",
        "first",
        130,
        "1,050 tests: 625 pairs at 0.15 s, 64 formats at 1 s, 45 sources of PyTorch and JAX at 1 s, on the host; 8 "
        "processes share them: 25 s; their start 15 s, torch.compile 30 s; kernels are there",
        _tests,
    ),
    Part(
        "parity",
        "first",
        60,
        "2,237 rules: the reference takes 17 processor seconds, comparing and copies as many; 3 ms to load each "
        "kernel 7 s; start 5 s: 30 s",
        _parity,
    ),
    Part(
        "layouts",
        "first",
        30,
        "4,575 launches at 2 ms (two allocations, two copies, the reference), 1,075 kernels to load at 3 ms: 13 s; "
        "start 5 s",
        _layouts,
    ),
    Part(
        "sweeps",
        "first",
        110,
        "8 destinations of 16,384 chunks, each 0.15 ms of NumPy and 0.3 ms of host work for the cast and copies of "
        "1.3 MiB, half of it one thread at a time: 5 to 12 s each",
        _sweeps,
    ),
    Part(
        "sanitizer",
        "first",
        145,
        f"3 tools, 20 s of start each, and 28 s for up to {gpu_sweep.KERNELS:,} launches, one of each kernel: at 26 ms "
        "for a launch with its instrumentation all are reached; unmeasured",
        _sanitizer,
    ),
    Part("quick", "second", 35, "20 s of measuring, start 5 s, calls 3 s", _quick),
    Part(
        "many",
        "second",
        45,
        "4 cases, twice: 10 ways of 100 batches of 1 to 2 ms or 2 s, arrays of 2 GB filled by 300 copies from the host",
        _cases("many"),
    ),
    Part(
        "quantize",
        "second",
        75,
        "32 cases of 4 or 5 ways at 50 batches of 1 ms: 0.3 s, and 0.7 s of filling and of the host's results: 32 s; "
        "8 cases again beside rivals that compile, 3 s each",
        _cases("quantize"),
    ),
    Part(
        "bench",
        "second",
        345,
        "by bench.gpu_plan's own estimate: all pairs 164 to 192 s, common pairs at all sizes 63 to 99 s, graphs, "
        "layouts, odd and huge 62 to 82 s; a second call: shared pairs 199 s, rivals that compile 285 to 307 s",
        _bench,
    ),
)
CALLS = tuple(COMPILE)
