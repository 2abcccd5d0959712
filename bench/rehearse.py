# SPDX-License-Identifier: Apache-2.0
"""Both calls of bench/gpu.sh without a GPU: ``python -m bench.rehearse [FOLDER]``, by hand, in the environment to try.

In a copy of the files without git; see tests/rehearsal/stand_ins.py for what takes the place of the GPU. The first two
calls meet rivals and a sanitizer that stall and die. A third goes on from their archive while all are well. Then the
results are placed as bench/GPU.md says, and the README is made of them. What is not as it should be is named at the
end; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.revision import ROOT, VARIABLE, commit

#: Where the stand-ins are, and the variable that makes all rivals work.
STAND_INS = Path("tests", "rehearsal")
RIVALS = "REHEARSAL_RIVALS"
#: The slug of the stand-in's name.
GPU = "nvidia-fake"
#: Of the tests that a GPU runs, those that ask nothing of CuPy but arrays.
TESTS = "test_every_pair or test_elements_at_odd_addresses or (test_edges_of_blocks and int8_64)"
#: A part or a tool: how its line of the summary begins behind the name, and more that is in it.
FIRST = {
    "tests": ("passed", ""),
    "parity": ("passed", ""),
    "layouts": ("passed", ""),
    "sweeps": ("passed", "8 of 8"),
    "memcheck": ("FAILED (-11)", "nothing was planned"),
    "racecheck": ("OUT OF TIME", "nothing was planned"),
    "initcheck": ("passed", ""),
}
SECOND = {
    "quick": ("passed", "2 of 2"),
    "many": ("FAILED (-11)", "1 under way at the end: FLOAT to FLOAT8E4M3FN, rivals"),
    "quantize": ("OUT OF TIME", "1 under way at the end: FLOAT to float8e4m3fn_1x128, rivals"),
    "bench": ("OUT OF TIME", "1 under way at the end: rivals that compile: FLOAT to FLOAT16, 4,096"),
    # Of the reserve; pictures come last, and may be missing.
    "report": ("", ""),
}
#: What it makes in any case.
TABLES = (".md", ".csv")
WELL = ("tests", "parity", "layouts", "sweeps", "sanitizer", "quick", "many", "quantize", "bench")
#: What every session of the lines must tell.
FACTS = ("gpu", "arch", "driver", "cuda", "date", "commit", "code")
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "build", "dist", "out", "*.egg-info")


@dataclass(frozen=True)
class Call:
    """One call of bench/gpu.sh that is over."""

    code: int
    #: Its summary, by the name of the part or of the tool.
    summary: dict[str, str]
    archive: Path
    seconds: float

    def files(self) -> dict[str, bytes]:
        with tarfile.open(self.archive) as archive:
            opened = {member.name: archive.extractfile(member) for member in archive}
            return {name: file.read() for name, file in opened.items() if file is not None}


def copied(folder: Path) -> Path:
    """The files of this repository, without their history."""
    return Path(shutil.copytree(ROOT, folder / "gpucast", ignore=_NOT_COPIED))


def environment(root: Path, folder: Path) -> dict[str, str]:
    """That of a call on a stand-in GPU. `folder`: of the call's files, and of the kernels that are compiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPU_", "PYTEST_", "REHEARSAL_"))}
    stand_ins = root / STAND_INS
    return {
        **kept,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, (stand_ins, root / "tests"))),
        "PATH": os.pathsep.join((str(stand_ins), os.environ["PATH"])),
        "PYTEST_ADDOPTS": f'-k "{TESTS}"',
        "GPU_RANDOM": "200",
        "GPU_WORK": str(folder / "work"),
        "RESULTS": str(folder / "results"),
        "GPUCAST_CACHE_DIR": str(folder / "kernels"),
        "CUPY_CACHE_DIR": str(folder / "kernels"),
        VARIABLE: f"rehearsal-{commit() or 'unknown'}",
    }


def call(root: Path, folder: Path, parts: Sequence[str], seconds: float, more: Mapping[str, str]) -> Call:
    """``bench/gpu.sh PART ...`` in `root`, printed as it goes; RuntimeError where it leaves no archive."""
    variables = {**environment(root, folder), "GPU_SECONDS": f"{seconds:g}", **more}
    print(f"\n#### bench/gpu.sh {' '.join(parts)} ({seconds:g} s; {dict(more)})", flush=True)
    begin = time.monotonic()
    process = subprocess.Popen(
        ["bash", "bench/gpu.sh", *parts],
        cwd=root, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    output = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.rstrip("\n"))
            print(f"{time.monotonic() - begin:6.1f} {line}", end="", flush=True)
    code = process.returncode
    found = sorted((folder / "results").glob("*.tar.gz"))
    if not found or "== summary" not in output:
        raise RuntimeError(f"bench/gpu.sh {' '.join(parts)} ended with {code} and left no archive:\n" + output[-1])
    told = output[output.index("== summary") + 1 :]
    summary = dict(line.split(": ", 1) for line in told if ": " in line)
    return Call(code, summary, found[-1], time.monotonic() - begin)


def problems(done: Call, wanted: Mapping[str, tuple[str, str]], named: str) -> list[str]:
    """What of a call is not as it should be. `named`: the commit that was handed over."""
    found = []
    for part, (begin, within) in wanted.items():
        line = done.summary.get(part, "(none)")
        if not (line.startswith(begin) and within in line):
            found.append(f"{part}: {line}; expected {begin} ... {within}")
    good = all(begin == "passed" for part, (begin, _) in wanted.items() if part != "report")
    if good != (done.code == 0):
        found.append(f"the exit code is {done.code}")
    files = done.files()
    for part in wanted:
        if not any(re.fullmatch(rf"{part}-gpu-{GPU}-.*\.log", name) for name in files):
            found.append(f"{part}: its log is not in the archive")
        # What never began has no lines.
        lines = [name for name in files if re.fullmatch(rf"{part}-gpu-{GPU}-.*\.jsonl", name)]
        if part != "report" and "nothing was planned" not in done.summary.get(part, "") and not lines:
            found.append(f"{part}: its lines are not in the archive")
    if not any(re.fullmatch(rf"summary-gpu-{GPU}-.*\.txt", name) for name in files):
        found.append("the summary is not in the archive")
    if "bench" in wanted:
        ends = {Path(name).suffix for name in files if name.startswith(f"gpu-{GPU}-")}
        found += [f"the benchmark's {end} is not in the archive" for end in TABLES if end not in ends]
    for name, data in files.items():
        found += [f"{name}: {what}" for what in unreadable(name, data, named)]
    return found


def unreadable(name: str, data: bytes, named: str) -> list[str]:
    """What is wrong with a file of an archive: all are text but pictures, and JSON where their names say so."""
    if not data:
        return ["it is empty"]
    if name.endswith(".png"):
        return [] if data.startswith(b"\x89PNG") else ["it is no picture"]
    try:
        text = data.decode("utf-8")
        if name.endswith(".json"):
            json.loads(text)
        entries = [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else []
    except ValueError as error:
        return [str(error)]
    if name.endswith(".log"):
        return [] if named in text else ["it does not name the commit"]
    if not name.endswith(".jsonl"):
        return []
    sessions = [entry for entry in entries if entry["kind"] == "session"]
    if not sessions or entries[0]["kind"] != "session":
        return ["it does not begin with a session"]
    facts = ("date", "commit", "code", "facts") if name.startswith("gpu-") else FACTS
    lacks = {fact for fact in facts for session in sessions if not session.get(fact)}
    found = [f"a session lacks {', '.join(sorted(lacks))}"] if lacks else []
    if any(session.get("commit") != named for session in sessions):
        found.append(f"a session is of {sorted({str(session.get('commit')) for session in sessions})}")
    if not all(isinstance(session.get(fact), str) for fact in facts if fact != "facts" for session in sessions):
        found.append(f"a fact of a session is no text: {sessions[0]}")
    return found


def gone_on_with(done: Call, before: Call) -> list[str]:
    """What a call should have taken over from an earlier one, and has not."""
    mine, theirs = done.files(), before.files()
    found = [f"{name} of the earlier archive is not in the later one" for name in theirs if name not in mine]
    for name, data in theirs.items():
        if name.endswith((".jsonl", ".log")) and not mine.get(name, b"").startswith(data.rstrip(b"\n")):
            found.append(f"{name}: what the earlier call wrote is not at its beginning")
    return found


def done_twice(files: Mapping[str, bytes]) -> list[str]:
    """Cases that a later session did again although an earlier one had done them well."""
    found = []
    for name, data in files.items():
        if not re.match(r"(parity|layouts|sweeps|memcheck|racecheck|initcheck|many|quantize)-.*\.jsonl", name):
            continue
        entries = [json.loads(line) for line in data.decode().splitlines()]
        well = [entry["name"] for entry in entries if entry["kind"] == "done" and not entry["failed"]]
        if len(well) != len(set(well)):
            found.append(f"{name}: {len(well) - len(set(well))} cases are done twice")
    return found


def placed(root: Path, archive: Path, variables: Mapping[str, str]) -> list[str]:
    """Place the results as bench/GPU.md says, and look for them in the README."""
    commands = re.findall(r"^```\n(tar .*?)^```", (root / "bench" / "GPU.md").read_text("utf-8"), re.DOTALL | re.M)
    if len(commands) != 1:
        return ["bench/GPU.md does not say how to place the results"]
    shutil.copy(archive, root / "bench" / "results")
    text = commands[0].replace("gpu-<name>-<time>.tar.gz", archive.name).replace("python -m", f"{sys.executable} -m")
    before = (root / "README.md").read_text("utf-8")
    print(f"\n#### in bench/results:\n{text}", flush=True)
    # The stand-ins are in place: a table is of arrays of the size that was measured.
    result = subprocess.run(
        ["bash", "-ec", text],
        cwd=root, env={**variables, "PYTHONPATH": f"{root}{os.pathsep}{variables['PYTHONPATH']}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        return [f"the commands of bench/GPU.md end with {result.returncode}: {result.stderr[-2000:]}"]
    readme, left = (root / "README.md").read_text("utf-8"), sorted((root / "bench" / "results").glob("*gpu-*"))
    print(f"{len(left)} files: {', '.join(path.name for path in left)}")
    section = readme.partition("<!-- gpu:")[2].partition("<!-- end -->")[0]
    print(section)
    wanted = ("NVIDIA Fake", variables[VARIABLE], "| FLOAT | FLOAT16 |", "CuPy copyto")
    found = [f"the README's section does not name {text!r}" for text in wanted if text not in section]
    if before.replace(before.partition("<!-- gpu:")[2].partition("<!-- end -->")[0], section) != readme:
        found.append("the README changed in other places than its section on GPUs")
    found += [
        f"{link} of the README's section is no file"
        for link in re.findall(r"\]\((.*?)\)", section)
        if not (root / link).is_file()
    ]
    found += [f"{path.name} is still in bench/results" for path in left if path.suffix in (".log", ".gz")]
    return found


def rehearse(folder: Path, seconds: float) -> list[str]:
    """All of it, in `folder`; what was not as it should be."""
    root = copied(folder)
    named = environment(root, folder)[VARIABLE]
    found = Found()
    if (root / ".git").exists():
        found.add("the copy", [f"{root} has a .git"])
    first = call(root, folder / "first", ["first"], seconds, {})
    found.add("first", problems(first, FIRST, named))
    second = call(root, folder / "second", ["second"], seconds, {"GPU_ARCHIVE": str(first.archive)})
    found.add("second", [*problems(second, SECOND, named), *gone_on_with(second, first)])
    third = call(root, folder / "third", [], 2 * seconds, {"GPU_ARCHIVE": str(second.archive), RIVALS: "well"})
    stopped = {part for part, (begin, _) in (FIRST | SECOND).items() if begin != "passed"}
    expected = {part: ("passed", "" if part in stopped else "not run again") for part in WELL if part != "sanitizer"}
    expected |= dict.fromkeys(("memcheck", "racecheck", "initcheck"), ("passed", ""))
    found.add("both again", problems(third, expected, named))
    found.add("going on", [*gone_on_with(third, second), *done_twice(third.files())])
    found.add("the results", placed(root, third.archive, environment(root, folder / "third")))
    for name, done in (("first", first), ("second", second), ("both again", third)):
        limit = 2 * seconds if done is third else seconds
        found.add(f"{name}: its time", [f"{done.seconds:.0f} s of {limit:g}"] if done.seconds > limit else [])
        print(f"{name}: {done.seconds:.0f} s, {len(done.files())} files, {done.archive.stat().st_size:,} bytes")
    return found.every


class Found:
    """Problems, told as they are found."""

    def __init__(self) -> None:
        self.every: list[str] = []

    def add(self, what: str, found: Iterable[str]) -> None:
        some = [f"{what}: {problem}" for problem in found]
        print("\n".join(f"#### NOT SO: {problem}" for problem in some) or f"#### as it should be: {what}", flush=True)
        self.every += some


def packages() -> dict[str, Any]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "ml_dtypes", "cupy-cuda12x", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 (a handful)
            continue
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rehearse", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="keep all files there (default: none is kept)")
    parser.add_argument("--seconds", type=float, default=240.0, metavar="S", help="of each call (default: 240)")
    arguments = parser.parse_args(argv)
    print(", ".join(f"{name} {text}" for name, text in packages().items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="gpucast-rehearsal-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = rehearse(folder.resolve(), arguments.seconds)
    print("\n".join(["", *found]) if found else "\nall is as it should be")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
