# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, which may come between any two steps of a run: nothing stays, or all is written."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from conversions import planned
from gpucast import checkpoints, files
from gpucast.checkpoints.running import cluster, place, staging
from gpucast.checkpoints.running.staging import Staging

RUNNING = os.path.dirname(staging.__file__) + os.sep


class Interrupting:
    """Ctrl-C before line number `at` (from 0) of those that are run in `checkpoints/running`, which it counts.

    Until the work has begun a line counts as often as it is run, later the first time, or always with `every_time`.
    """

    def __init__(self, at: int, every_time: bool) -> None:
        self._at, self._every_time = at, every_time
        self._seen = set[tuple[str, int]]()
        self._has_begun = False
        self.lines = 0

    def __enter__(self) -> Interrupting:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        # How many lines `place` runs depends on what is mounted; it changes nothing.
        path = frame.f_code.co_filename
        return self._traced if path.startswith(RUNNING) and path != place.__file__ else None

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return" and frame.f_code is Staging.begin.__code__:
            self._has_begun = True
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and (self._every_time or not self._has_begun or line not in self._seen):
            self._seen.add(line)
            if self.lines == self._at:
                sys.settrace(None)
                raise KeyboardInterrupt
            self.lines += 1
        return self._traced


def contents(folder: Path) -> dict[str, bytes]:
    """Files, and folders, which a run might leave empty."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Gives a new working folder, always with the same files."""
    first = tmp_path / "first"
    (first / "in").mkdir(parents=True)
    for name in ("in.safetensors", "in/a.safetensors", "in/b.safetensors"):
        files.save(str(first / name), {name: np.linspace(-1, 1, 100, dtype=np.float32)})
    (first / "out.npz").write_bytes(b"old")

    def make() -> Path:
        monkeypatch.chdir(tmp_path)
        shutil.rmtree("next", ignore_errors=True)
        shutil.copytree(first, "next")
        monkeypatch.chdir("next")
        return tmp_path / "next"

    return make


# A file that is interrupted in its `with` is closed by who collects it.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("argv", "step"), [(("in.safetensors", "out.npz"), 1), (("in", "out"), 5)])
def test_a_run_interrupted_at_any_line_leaves_nothing_or_all(
    argv: tuple[str, str], step: int, fresh: Callable[[], Path], exhaustive: bool
) -> None:
    """A run was interrupted right after it had made OUT.partial, before it knew that it had, and left it."""

    def run(at: int) -> tuple[bool, checkpoints.Outcome, int]:
        plan = planned(*argv)
        outcome = checkpoints.Outcome(plan)
        with Interrupting(at, exhaustive) as interrupting:
            try:
                checkpoints.run(plan, checkpoints.Options(), outcome)
            except KeyboardInterrupt:
                return True, outcome, at
        return False, outcome, interrupting.lines

    before = contents(fresh())
    _, _, lines = run(-1)
    after = contents(Path())
    assert lines > 500 and after != before
    told = set()
    for at in range(0, lines, 1 if exhaustive else step):
        fresh()
        is_interrupted, outcome, _ = run(at)
        assert is_interrupted, at
        left = contents(Path())
        # As before; or written, which it says, but for the very last line, when all is done.
        is_last = at == lines - 1
        assert left == (before if outcome.left is None and not is_last else after), (at, sorted(left), outcome.left)
        assert outcome.kept is None
        told.add(outcome.left)
    assert told == {None, ""}
    gc.collect()


def test_an_interrupted_beginning_on_a_cluster_leaves_nothing(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = fresh()
    plan = planned(f"{where}/in", f"{where}/out")
    monkeypatch.setattr(cluster, "_connected", lambda address: memoryview(b""))
    monkeypatch.setattr(cluster, "_check_versions", lambda client: None)
    before = contents(where)
    make_folders, write = Staging._make_folders, staging.jobs.write

    for owner, name, function in ((staging.jobs, "write", write), (Staging, "_make_folders", make_folders)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

            def then_interrupted(*args: Any, function: Any = function) -> None:
                function(*args)
                raise KeyboardInterrupt

            patch.setattr(owner, name, then_interrupted)
            cluster.run_on("tcp://nowhere", plan, checkpoints.Options(), checkpoints.Outcome(plan))
        assert contents(where) == before, name


def test_an_interrupted_start_leaves_the_work_of_others(fresh: Callable[[], Path]) -> None:
    """One that works, and one that waits for it: the second is interrupted."""
    fresh()
    other = Staging(planned("in", "out"))
    other.begin()
    before = contents(Path())
    for at in (0, 50, 100, 150, 200, 250, 300, 350):
        plan = planned("in", "out")
        with Interrupting(at, every_time=True), pytest.raises(KeyboardInterrupt):
            checkpoints.run(plan, checkpoints.Options(), checkpoints.Outcome(plan))
        # It may have begun to write, too.
        assert before.items() <= contents(Path()).items(), at
    other.release()


def test_a_source_exchanged_between_two_runs_is_not_mixed(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, times and ends: what of the old one was finished went into the same file as the new one."""
    fresh()
    x = {name: np.full(1 << 17, 1, np.float32) for name in "abc"}
    files.save("in.safetensors", x)
    monkeypatch.setattr(staging, "WORTH_KEEPING", 0)

    def interrupt(done: int) -> None:
        nonlocal left
        left -= done
        if left <= 0:
            raise KeyboardInterrupt

    for is_exchanged in (False, True):
        plan, left = planned("in.safetensors", "out.safetensors"), 2 * x["a"].nbytes
        with pytest.raises(KeyboardInterrupt):
            checkpoints.run(plan, checkpoints.Options(), checkpoints.Outcome(plan), interrupt)
        if is_exchanged:
            before = os.stat("in.safetensors")
            with open("in.safetensors", "r+b") as file:
                file.seek(1 << 17)
                file.write(np.full(1 << 18, 2, np.float32).tobytes())
            os.utime("in.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert planned("in.safetensors", "out.safetensors").fingerprint == plan.fingerprint
        outcome = checkpoints.Outcome(plan)
        checkpoints.run(plan, checkpoints.Options(), outcome)
        assert outcome.resumed == (0 if is_exchanged else x["a"].nbytes)
        for name, y in files.load("out.safetensors").items():
            assert np.array_equal(y, files.load("in.safetensors")[name]), name
        os.unlink("out.safetensors")
