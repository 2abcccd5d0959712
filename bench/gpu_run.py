# SPDX-License-Identifier: Apache-2.0
"""The program behind bench/gpu.sh: runs the parts of a run on a GPU, each with a time limit, and archives the results.

Every part writes its results at once, so that a part that is stopped leaves what it has reached. The archive is written
again after each part. Parts that passed are not run again by the same code unless they are named.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench import gpu_archive
from bench.gpu_lines import FACTS, reached
from bench.gpu_parts import CALLS, COMPILE, PARTS, LeftOut, Part, RunFiles, Step
from bench.gpu_process import GRACE, limited
from bench.revision import ROOT, VARIABLE, code_digest, commit
from gpucast.cli.arguments import positive

#: Seconds reserved for the end: the grace period of the last part, the summary and the archive.
_RESERVE = GRACE + 2.0
#: The fewest seconds with which a part is started.
_LEAST = 5.0
#: Nothing is lost where the report has little time to end: it writes no lines.
_REPORT_GRACE = 1.0


class Stopped(BaseException):
    """The run was stopped by SIGTERM or Ctrl-C."""


class Run:
    """One call."""

    def __init__(self, python: str, files: RunFiles, results: Path, end: float, environment: dict[str, str]) -> None:
        self.python, self.files, self.environment = python, files, environment
        #: The deadline, by `time.monotonic`.
        self.end = end
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d-%H%M%S")
        self.archive = results / f"gpu-{files.gpu}-{stamp}.tar.gz"
        self.summary: list[str] = []
        self.failed = False
        self._state = files.folder / f"state-{files.code}.json"

    @property
    def left(self) -> float:
        return self.end - _RESERVE - time.monotonic()

    def passed(self) -> dict[str, Any]:
        """The parts that passed earlier with this code, and when."""
        try:
            found: dict[str, Any] = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def parts(self, chosen: Sequence[Part], named: Sequence[str], compile_seconds: float) -> None:
        """Run some parts; those that passed before only if they are named."""
        passed = self.passed()
        rest = [part for part in chosen if part.name in named or part.name not in passed]
        for part in chosen:
            if part not in rest:
                self._tell(f"{part.name}: passed {passed[part.name]}, not run again")
        if rest:
            self._compile(rest, compile_seconds)
        while rest:
            self._part(rest[0], self.left * rest[0].seconds / sum(part.seconds for part in rest))
            del rest[0]
            self.pack()

    def _compile(self, parts: Sequence[Part], seconds: float) -> None:
        seconds = min(seconds, self.left / 2)
        lines = self.files.file("compile", ".jsonl")
        own = max(seconds - 8.0, seconds / 2)
        command = ["-m", "bench.gpu_compile", "--lines", str(lines), "--seconds", f"{own:.0f}"]
        # Kernels that it does not reach are no failure, because the parts compile them.
        self._step(Step("compile", [*command, *(part.name for part in parts)], lines), seconds, counts=False)

    def _part(self, part: Part, seconds: float) -> None:
        if seconds < _LEAST:
            self._tell(f"{part.name}: LEFT OUT, no time", failed=True)
            return
        try:
            steps = part.steps(self.files, seconds)
        except LeftOut as reason:
            self._tell(f"{part.name}: LEFT OUT, {reason}", failed=True)
            return
        end = time.monotonic() + seconds
        good = True
        for number, step in enumerate(steps):
            # Time that one tool does not use goes to the following ones.
            own = (end - time.monotonic()) / (len(steps) - number)
            good = self._step(step, min(own, self.left)) and good
        if part.name == "bench" and not good:
            # The tables and pictures of what there is. A benchmark that was cut off has had all the time but the
            # reserve, and has left most of its grace.
            command = ["-m", "bench", "--report-only", "--results", str(self.files.folder)]
            seconds = min(30.0, self.left + _RESERVE - _REPORT_GRACE - 2.0)
            self._step(Step("report", command), seconds, counts=False, grace=_REPORT_GRACE)
        if good:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._state.write_text(json.dumps(self.passed() | {part.name: now}) + "\n", encoding="utf-8")

    def _step(self, step: Step, seconds: float, counts: bool = True, grace: float = GRACE) -> bool:
        if seconds < 1.0:
            self._tell(f"{step.name}: LEFT OUT, no time", failed=counts)
            return False
        log = self.files.file(step.name, ".log")
        command = [*step.before, self.python, *step.command]
        head = f"== {step.name} (up to {seconds:.0f} s): {' '.join(command)}"
        print(head, flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{head}\n{self.environment[FACTS]}, commit {commit()}, code {self.files.code}\n")
        begin = time.monotonic()
        try:
            ended = limited(command, log, seconds, self.environment, ROOT, grace)
        except Stopped:
            self._tell(f"{step.name}: STOPPED, {time.monotonic() - begin:.0f} s{self._reached(step)}", failed=True)
            raise
        except OSError as error:
            self._tell(f"{step.name}: FAILED, {error}", failed=counts)
            return False
        if ended.code is None:
            word = "OUT OF TIME"
        else:
            good = "passed" if self._complete(step) else "IN PART"
            word = good if ended.code == 0 else f"FAILED ({ended.code})"
        self._tell(f"{step.name}: {word}, {ended.seconds:.0f} s{self._reached(step)}", ended.code != 0 and counts)
        return ended.code == 0 and self._complete(step)

    def _reached(self, step: Step) -> str:
        return "" if step.lines is None else f": {reached(step.lines).text()}"

    def _complete(self, step: Step) -> bool:
        """Whether nothing is left to do, because a part that respects its time limit may end early."""
        return step.lines is None or not reached(step.lines).left

    def _tell(self, line: str, failed: bool = False) -> None:
        self.summary.append(line)
        self.failed = self.failed or failed
        print(line, flush=True)

    def pack(self) -> None:
        """The archive and the summary as they are now."""
        files = self.files
        head = f"== summary ({files.gpu}, commit {commit()}, code {files.code}; {self.environment[FACTS]})"
        text = "\n".join([head, *self.summary]) + "\n"
        (files.folder / f"summary-gpu-{files.gpu}-{files.date}-{files.code}.txt").write_text(text, encoding="utf-8")
        size = gpu_archive.pack(self.archive, [path for path in files.folder.iterdir() if files.code in path.name])
        if size > gpu_archive.LIMIT:
            print(f"gpu_run: {self.archive} has {size / 2**20:.0f} MiB; some receivers take 16", file=sys.stderr)

    def end_of_run(self) -> int:
        self.pack()
        print("\n".join(["== summary", *self.summary, f"archive: {self.archive}"]), flush=True)
        return int(self.failed)


def main(argv: Sequence[str] | None = None) -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(CALLS)} (the two calls), or some of {', '.join(names)}"
    )
    arguments = parser.parse_args(argv)
    for name in arguments.parts:
        if name not in (*CALLS, *names):
            parser.error(f"{name} is no part; expected some of {', '.join((*CALLS, *names))}")
    begin, seconds = time.monotonic(), positive(os.environ.get("GPU_SECONDS") or "570")
    asked = arguments.parts or list(CALLS)
    chosen = [part for part in PARTS if part.name in asked or part.call in asked]
    python = os.environ.get("PYTHON") or sys.executable
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        # Otherwise JAX allocates three quarters of the memory in every process that imports it.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Large enough for all kernels of all parts, so that none is compiled twice.
        "GPUCAST_CACHE_SIZE": os.environ.get("GPUCAST_CACHE_SIZE") or "1024",
        VARIABLE: commit(),
    }
    # A machine that is busy takes long to begin; without an answer the rest of the call is of no use.
    facts = gpu_facts(python, environment, seconds / 2)
    if facts is None:
        print("bench/gpu.sh: there is no GPU that gpucast can use", file=sys.stderr)
        return 1
    environment[FACTS] = json.dumps(facts)
    files = _run_files(facts["gpu"])
    if os.environ.get("GPU_ARCHIVE"):
        try:
            there = gpu_archive.unpack(Path(os.environ["GPU_ARCHIVE"]), files.folder)
        except ValueError as error:
            print(f"bench/gpu.sh: GPU_ARCHIVE: {error}", file=sys.stderr)
            return 2
        print(f"bench/gpu.sh: goes on with {len(there)} files of {os.environ['GPU_ARCHIVE']}", flush=True)
    results = Path(os.environ.get("RESULTS") or ROOT / "bench" / "results")
    run = Run(python, files, results, begin + seconds, environment)
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run.parts(chosen, arguments.parts, max(COMPILE[part.call] for part in chosen))
    except Stopped:
        run.failed = True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return run.end_of_run()


def gpu_facts(python: str, environment: dict[str, str], seconds: float) -> dict[str, Any] | None:
    """GPU, driver and CUDA as reported by `gpucast info`; None, with its verdict on stderr, if casts cannot run."""
    command = [python, "-m", "gpucast", "info", "--json"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        print(f"bench/gpu.sh: gpucast info: {error}", file=sys.stderr)
        return None
    print(found["verdict"], file=sys.stderr)
    if not found["gpu_casts"] or not found["devices"]:
        return None
    # Such as "cuda:0 NVIDIA H200 (sm_90)".
    match = re.fullmatch(r"(?:cuda:\d+ )?(.*?)(?: \((sm_\w+)\))?", str(found["devices"][0]))
    assert match is not None
    # The newest CUDA that the driver runs, such as [13, 0].
    cuda = ".".join(map(str, (found.get("driver") or {}).get("cuda", ())))
    return {"gpu": match[1], "arch": match[2], "driver": _driver_version(), "cuda": cuda}


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(done.stdout.split()), "")


def _run_files(gpu: str) -> RunFiles:
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    folder = Path(os.environ.get("GPU_WORK") or ROOT / "build" / "gpu-run") / slug
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    return RunFiles(folder, slug, date, code_digest())


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


if __name__ == "__main__":
    sys.exit(main())
