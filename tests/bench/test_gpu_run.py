# SPDX-License-Identifier: Apache-2.0
"""`bench/gpu.sh` and the modules of a run on a GPU: with a Python that only notes what it is asked, no part runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_archive, gpu_kernels
from bench.gpu_lines import Lines, reached, read
from bench.gpu_parts import CALLS, COMPILE, PARTS, RunFiles
from bench.gpu_process import limited
from endings import HANGS, have_ended

ROOT = Path(__file__).resolve().parents[2]
NAMES = [part.name for part in PARTS]

#: Runs `bench.gpu_run` by a clock on which only processes that hang take time, and all that they may. One that hangs
#: says so by a file; every other one is waited for, however slow the machine is.
_CLOCKED = """
import os, runpy, subprocess, sys, time
from pathlib import Path
now, hangs, wait_for = 0.0, Path(os.environ["STUB_LOG"] + ".hangs"), subprocess.Popen.wait
def wait(process, timeout=None):
    global now
    while timeout is not None and process.poll() is None:
        if hangs.exists():
            hangs.unlink()
            now += timeout
            raise subprocess.TimeoutExpired(process.args, timeout)
        time.sleep(0.01)
    return wait_for(process)
time.monotonic, subprocess.Popen.wait = lambda: now, wait
runpy.run_module("bench.gpu_run", run_name="__main__")
"""
#: Notes its arguments and variables, writes lines where it is asked to, and fails, hangs (SLOW: without saying so) or
#: leaves a case if told so.
_STUB = """
import json, os, sys, time
argv = sys.argv[1:]
text = " ".join(argv)
if argv[:2] == ["-m", "bench.gpu_run"]:
    os.execv(os.environ["REAL_PYTHON"], [os.environ["REAL_PYTHON"], "-c", os.environ["CLOCKED"], *argv[2:]])
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(text + "\\n")
if argv == ["-m", "gpucast", "info", "--json"]:
    print(os.environ["STUB_INFO"])
    sys.exit()
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" and os.environ["GPU_FACTS"]
def told(name):
    return os.environ[name] and os.environ[name] in text
print("output of", text, flush=True)
if "--lines" in argv:
    from pathlib import Path
    from bench.gpu_lines import Lines
    lines = Lines(Path(argv[argv.index("--lines") + 1]))
    lines.plan(["a", "b", "c"])
    lines.done("a")
    lines.begin("b")
if told("STUB_HANG"):
    open(os.environ["STUB_LOG"] + ".hangs", "w").close()
if told("STUB_HANG") or told("STUB_SLOW"):
    time.sleep(600)
if "--lines" in argv and not told("STUB_PART"):
    lines.done("b", "it differs" if told("STUB_FAIL") else "")
    lines.done("c")
sys.exit(3 if told("STUB_FAIL") else 0)
"""
_INFO = {"verdict": "GPU casts: yes", "gpu_casts": True, "devices": ["cuda:0 NVIDIA H200 (sm_90)"]}
_INFO["driver"] = {"cuda": [13, 0], "problem": None}

Script = Callable[..., "Ran"]


class Ran:
    """A run that is over, or that has just begun."""

    def __init__(self, process: subprocess.Popen[str], log: Path, results: Path) -> None:
        self.process, self.log, self.results = process, log, results
        self.output = ""

    def over(self) -> Ran:
        self.output = self.process.communicate()[0]
        return self

    @property
    def code(self) -> int:
        return self.process.returncode

    @property
    def calls(self) -> list[str]:
        """What was started beside `info`."""
        return [line for line in self.log.read_text().splitlines() if "info --json" not in line]

    @property
    def summary(self) -> list[str]:
        return self.output.split("== summary\n")[1].splitlines()

    @property
    def archive(self) -> Path:
        (path,) = self.results.glob("*.tar.gz")
        return path


@pytest.fixture
def script(tmp_path: Path) -> Script:
    stub, log = tmp_path / "python", tmp_path / "log"
    stub.write_text(f'#!/bin/bash\nexec {sys.executable} {tmp_path}/stub.py "$@"\n')
    (tmp_path / "stub.py").write_text(_STUB)
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        textwrap.dedent("""\
        #!/bin/bash
        if [ "$1" = --help ]; then echo "  --kernel-name arg"; exit; fi
        echo "sanitizer $*" >>"$STUB_LOG"
        while [ "$1" != "$PYTHON" ]; do shift; done
        exec "$@"
        """)
    )
    for path in (stub, tool):
        path.chmod(0o755)
    count = 0

    def start(*parts: str, **variables: str) -> Ran:
        nonlocal count
        count += 1
        log.write_text("")
        results = tmp_path / f"results{count}"
        environment = {
            **os.environ, "PYTHON": str(stub), "REAL_PYTHON": sys.executable, "RESULTS": str(results),
            "GPU_WORK": str(tmp_path / "work"), "PATH": f"{tmp_path}:{os.environ['PATH']}", "STUB_LOG": str(log),
            "CLOCKED": _CLOCKED, "STUB_FAIL": "", "STUB_HANG": "", "STUB_SLOW": "", "STUB_PART": "",
            "STUB_INFO": json.dumps(_INFO), **variables,
        }  # fmt: skip
        for name in ("GPU_ARCHIVE", "GPU_SECONDS", "GPU_FACTS"):
            if name not in variables:
                environment.pop(name, None)
        process = subprocess.Popen(
            ["bash", str(ROOT / "bench" / "gpu.sh"), *parts],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Ran(process, log, results)

    return start


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


# ---- the two calls ----


@pytest.mark.parametrize("call", CALLS)
def test_a_call_runs_its_parts_in_their_order_and_packs_all_of_them(script: Script, call: str) -> None:
    ran = script(call, GPUCAST_COMMIT="abc123").over()
    assert ran.code == 0, ran.output
    expected = {
        "first": ["gpu_compile", "pytest", "gpu_parity", "gpu_sweep ", "gpu_sweeps", *["sanitizer", "gpu_sweep "] * 3],
        "second": ["gpu_compile", "gpu_quick", "bench --many", "bench --quantize", "bench --results"],
    }[call]
    assert len(ran.calls) == len(expected)
    assert all(part in call for part, call in zip(expected, ran.calls, strict=True)), ran.calls
    steps = [line.split(":")[0] for line in ran.summary[:-1]]
    assert all(": passed, " in line and "3 of 3" in line for line in ran.summary[:-1]), ran.summary
    files = members(ran.archive)
    for step in steps:
        names = [name for name in files if name.startswith(f"{step}-gpu-nvidia-h200-")]
        assert sorted(name.rsplit(".", 1)[1] for name in names) == ["jsonl", "log"], (step, list(files))
        log, lines = (files[next(name for name in names if name.endswith(end))].decode() for end in ("log", "jsonl"))
        assert "output of -m " in log
        first = json.loads(lines.splitlines()[0])
        assert first["kind"] == "session" and first["gpu"] == "NVIDIA H200" and first["arch"] == "sm_90"
        assert first["commit"] == "abc123" and first["cuda"] == "13.0" and {"driver", "date", "code"} <= first.keys()
        assert "abc123" in log and "NVIDIA H200" in log
    (summary,) = (data.decode() for name, data in files.items() if name.startswith("summary-"))
    assert "abc123" in summary and all(line in summary for line in ran.summary[:-1])
    assert re.fullmatch(r"gpu-nvidia-h200-\d{4}-\d\d-\d\d-\d{6}\.tar\.gz", ran.archive.name)
    assert [path.name for path in ran.results.iterdir()] == [ran.archive.name], "one file comes back"


def test_the_sanitizer_looks_at_our_kernels_alone(script: Script) -> None:
    ran = script("sanitizer").over()
    calls = [call for call in ran.calls if call.startswith("sanitizer")]
    assert [call.split("--tool ")[1].split()[0] for call in calls] == ["memcheck", "racecheck", "initcheck"]
    assert all("--error-exitcode 9 --kernel-name kns=gpucast_ " in call and "--launches 1075" in call for call in calls)


def test_no_sanitizer_is_told(script: Script, tmp_path: Path) -> None:
    (tmp_path / "compute-sanitizer").unlink()
    ran = script("sanitizer", "layouts").over()
    found = [line for line in ran.summary if line.startswith("sanitizer: LEFT OUT, compute-sanitizer is not on PATH")]
    assert ran.code == 1 and found and any("layouts: passed" in line for line in ran.summary)


def limits(output: str) -> dict[str, int]:
    return {name: int(limit) for name, limit in re.findall(r"^== ([\w-]+) \(up to (\d+) s\)", output, re.MULTILINE)}


def test_the_parts_share_the_time(script: Script) -> None:
    ran = script("first").over()
    every = limits(ran.output)
    assert every["compile"] == COMPILE["first"]
    assert all(0 < every[part.name] <= 570 for part in PARTS if part.name in every)
    # Nothing took its time, so the last of a call has all that is left.
    assert every["initcheck"] == 570 - 12
    only = script("bench", GPU_SECONDS="300").over()
    assert limits(only.output).keys() == {"compile", "bench"} and limits(only.output)["bench"] == 300 - 12
    budget = int(next(call for call in only.calls if "--budget-s" in call).split("--budget-s ")[1].split()[0])
    assert limits(only.output)["bench"] - 45 <= budget <= limits(only.output)["bench"] - 35


@pytest.mark.parametrize("call", CALLS)
def test_a_call_goes_into_its_time(call: str) -> None:
    assert 480 < sum(part.seconds for part in PARTS if part.call == call) + COMPILE[call] <= 558
    assert all(part.reckoned for part in PARTS) and set(NAMES) == set(gpu_kernels.OF_PARTS)


# ---- what goes wrong ----


@pytest.mark.parametrize("part", ["-m pytest", "gpu_sweep", "--many"])
def test_every_part_goes_on_when_another_fails(part: str, script: Script) -> None:
    ran = script(STUB_FAIL=part).over()
    assert ran.code == 1
    failed = [line for line in ran.summary if "FAILED (3)" in line]
    assert failed and all("1 FAILED: b (it differs)" in line for line in failed)
    assert len(ran.calls) == 1 + 4 + 3 * 2 + 4, "as many as when all goes well"
    assert members(ran.archive)


def test_a_part_out_of_time_is_cut_off_and_named(script: Script) -> None:
    ran = script("quick", "many", STUB_HANG="gpu_quick").over()
    assert ran.code == 1
    (line,) = (line for line in ran.summary if line.startswith("quick"))
    assert "OUT OF TIME" in line and "1 of 3" in line and "under way at the end: b" in line
    assert "2 not reached: b, c" in line
    assert any("many: passed" in line for line in ran.summary)
    assert any(name.startswith("quick-gpu") and b'"name":"a"' in data for name, data in members(ran.archive).items())


def test_a_benchmark_that_is_cut_off_has_its_tables(script: Script) -> None:
    """Of the reserve: it had all other time."""
    ran = script("bench", STUB_HANG="bench --results").over()
    lines = [line for line in ran.summary if line.startswith(("bench", "report"))]
    assert ran.code == 1 and lines[0].startswith("bench: OUT OF TIME") and lines[1].startswith("report: passed")
    assert "--report-only" in ran.calls[-1]


def test_a_part_that_ends_before_it_is_done_is_told_and_goes_on_later(script: Script) -> None:
    ran = script("second", STUB_PART="bench --results").over()
    (line,) = (line for line in ran.summary if line.startswith("bench"))
    assert ran.code == 0 and line.startswith("bench: IN PART, ") and "2 not reached: b, c" in line
    again = script("second").over()
    assert [call for call in again.calls if "gpu_compile" not in call] == [ran.calls[-1]]
    assert sum("not run again" in line for line in again.summary) == 3


def test_a_run_that_is_ended_leaves_an_archive(script: Script) -> None:
    ran = script("layouts", "quick", STUB_SLOW="gpu_sweep")
    while "gpu_sweep" not in ran.log.read_text():
        time.sleep(0.05)
    while not list((ran.log.parent / "work").rglob("layouts-*.jsonl")):
        time.sleep(0.05)
    ran.process.send_signal(signal.SIGTERM)
    ran.over()
    assert ran.code == 1 and any(line.startswith("layouts: STOPPED") for line in ran.summary), ran.output
    assert not any("gpu_quick" in call for call in ran.calls)
    assert any(name.startswith("layouts-gpu") for name in members(ran.archive))


def test_no_gpu_and_no_such_part_are_errors(script: Script) -> None:
    info = {"verdict": "GPU casts: no, because", "gpu_casts": False, "devices": []}
    ran = script(STUB_INFO=json.dumps(info)).over()
    assert ran.code == 1 and "GPU casts: no, because" in ran.output and "no GPU that gpucast can use" in ran.output
    ran = script("nonsense").over()
    assert ran.code == 2 and "nonsense is no part; expected some of first, second, tests, parity" in ran.output
    assert not ran.calls
    ran = script("quick", GPU_ARCHIVE="/nowhere.tar.gz").over()
    assert ran.code == 2 and not ran.calls and "/nowhere.tar.gz: [Errno 2] No such file" in ran.output


# ---- going on ----


def test_an_archive_is_gone_on_with(script: Script) -> None:
    first = script("quick", "many", STUB_PART="--many").over()
    again = script("second", GPU_WORK=str(first.results / "elsewhere"), GPU_ARCHIVE=str(first.archive)).over()
    assert again.code == 0, again.output
    assert not any("gpu_quick" in call for call in again.calls) and any("--many" in call for call in again.calls)
    assert any("quick: passed 2" in line and "not run again" in line for line in again.summary)
    (lines,) = (data for name, data in members(again.archive).items() if re.match(r"many-.*\.jsonl", name))
    assert lines.count(b'"session"') == 2, "one file holds both runs"
    named = script("quick", GPU_WORK=str(first.results / "elsewhere")).over()
    assert any("gpu_quick" in call for call in named.calls), "a part that is named runs again"


def test_other_code_begins_anew(tmp_path: Path) -> None:
    old, new = (RunFiles(tmp_path, "nvidia-h200", "2026-11-22", code) for code in ("01234567", "89abcdef"))
    old.file("parity", ".jsonl").write_text("")
    later = RunFiles(tmp_path, "nvidia-h200", "2026-11-23", "01234567")
    assert later.file("parity", ".jsonl") == old.file("parity", ".jsonl") != new.file("parity", ".jsonl")


@pytest.mark.parametrize("kind", ["none", "cut", "folders"])
def test_what_is_no_archive_is_refused(kind: str, tmp_path: Path) -> None:
    path, file = tmp_path / "a.tar.gz", tmp_path / "file.txt"
    file.write_text("x" * 100_000)
    if kind == "folders":
        with tarfile.open(path, "w:gz") as archive:
            archive.add(file, arcname="../file.txt")
    else:
        gpu_archive.pack(path, [file])
        path.write_bytes(b"nonsense" if kind == "none" else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="a.tar.gz"):
        gpu_archive.unpack(path, tmp_path / "new")
    assert not (tmp_path / "file.txt.new").exists() and not list(tmp_path.parent.glob("file.txt"))


def test_nothing_is_written_over_by_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    gpu_archive.pack(tmp_path / "x.tar.gz", [tmp_path / "a"])
    (tmp_path / "a").write_text("new")
    assert gpu_archive.unpack(tmp_path / "x.tar.gz", tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "new"


# ---- lines ----


def test_lines_say_what_was_reached(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = Lines(path)
    lines.plan("abcd")
    lines.done("a")
    lines.done("b", "broken\nmore words")
    lines.begin("c")
    found = reached(path)
    assert found.left == ["c", "d"] and found.failed == {"b": "broken\nmore words"}
    assert found.text() == "2 of 4; 1 FAILED: b (broken); 1 under way at the end: c; 2 not reached: c, d"
    with path.open("a") as file:
        file.write('{"kind":"done","name":"d","fai')
    again = Lines(path)
    assert list(again.finished) == ["a"], "what failed is tried again"
    again.done("b")
    again.done("c", skipped="no JAX")
    assert reached(path).text() == "3 of 4; 1 skipped (no JAX); 1 not reached: d"
    assert [entry["kind"] for entry in read(path)].count("session") == 2
    assert reached(tmp_path / "none").text() == "nothing was planned"
    Lines(None).done("nothing is written")


_TESTS = """
import os, pytest, time
def test_good(): pass
def test_bad(): assert 1 == 2, "no"
@pytest.mark.skip(reason="not here")
def test_left_out(): pass
def test_last():
    if os.environ.get("SLOW"):
        open(os.environ["SLOW"], "w").close()
        time.sleep(600)
"""


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_pytest_writes_each_test_as_it_ends(jobs: str, tmp_path: Path) -> None:
    """Also when it is killed in the midst of one."""
    (tmp_path / "test_some.py").write_text(_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", jobs, "-p", "bench.pytest_lines", "-c", "/dev/null"]
    command += ["--rootdir", str(tmp_path), "-p", "no:cacheprovider", str(tmp_path / "test_some.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    path, killed, slow = (tmp_path / name for name in ("lines", "killed", "slow"))
    ended = limited([*command, "--lines", str(path)], tmp_path / "log", HANGS, environment, ROOT)
    found = reached(path)
    assert ended.code == 1 and len(found.planned) == 4 and not found.left
    assert found.text().startswith("4 of 4; 1 skipped (Skipped: not here); 1 FAILED: ")
    (name,) = found.failed
    assert name.endswith("test_bad") and "AssertionError: no" in found.failed[name].splitlines()[0]
    process = subprocess.Popen(
        [*command, "--lines", str(killed)], env={**environment, "SLOW": str(slow)}, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        # What stands before it is in the file, too: of two processes the other may be on its way.
        while not (slow.exists() and len(reached(killed).lines) == 3):
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = reached(killed)
    assert [name.split("::")[1] for name in found.left] == ["test_last"] and len(found.failed) == 1
    assert list(found.under_way) == found.left


# ---- processes ----


def test_a_process_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over; it is only then that it has started its child."""
    text = "import subprocess, sys, time, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    text += "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    text += "print('child', child.pid, flush=True)\ntime.sleep(600)\n"
    log = tmp_path / "log"
    wait_for, limits = subprocess.Popen.wait, []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait_for(process)
        limits.append(timeout)
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    ended = limited([sys.executable, "-c", text], log, 2.0, os.environ, tmp_path, grace=0.5)
    assert ended.code is None and limits == [2.0, 0.5]
    assert have_ended([int(log.read_text().split()[1])])


def test_words_are_kept_as_they_come(tmp_path: Path, capfd: Any) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    command = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"]
    assert limited(command, log, 30, os.environ, tmp_path).code == 4
    assert sorted(log.read_text().split()) == ["before", "err", "out"]
    with pytest.raises(OSError):
        limited(["no-such-command"], log, 5, os.environ, tmp_path)
