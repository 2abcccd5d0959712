# SPDX-License-Identifier: Apache-2.0
"""Several runs on the same work, at once or one after the other: none takes what another has not finished for done."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import numpy as np
import pytest

from conversions import BIG, begun, failure, planned, run, two
from gpucast import files
from gpucast.cli import main
from gpucast.convert import Options, Outcome
from gpucast.convert.running import stream, work_folder
from gpucast.convert.running import work as work_module
from gpucast.convert.running.outcome import Share
from gpucast.convert.running.work import UnfinishedWork
from gpucast.convert.running.work_folder import WorkFolder
from gpucast.core.dtypes import dtype
from onnx_models import save_external
from tensors import leftovers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work_module, "WORTH_KEEPING", 0)
    return tmp_path


def test_a_file_is_finished_only_when_it_is_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    save_external("in/m.onnx", BIG)
    plan, verified = planned("in", "out"), list[str]()
    work = UnfinishedWork(plan)

    def interrupted(written: str, file: Any, *rest: Any) -> int:
        verified.append(file.name)
        assert work.is_done(file) == (written == work.finished(file.name))
        assert os.path.basename(written) == file.name
        if file.name == "b.safetensors" and verified.count(file.name) == 1:
            raise KeyboardInterrupt
        return verify(written, file, *rest)

    verify = stream.verify
    monkeypatch.setattr(stream, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(plan, verify="all")
    assert not work.is_done(plan.files[1])
    # Nothing of them is written anew.
    outcome = run(plan, verify="sampled")
    assert verified == ["a.safetensors", "b.safetensors", "a.safetensors", "b.safetensors", "m.onnx"]
    assert outcome.verified == 3 * 1024
    assert outcome.resumed == 2 * BIG.nbytes
    assert leftovers(folder, "in") == ["out"]


def test_finished_files_are_verified_by_the_run_that_is_told_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    plan = planned("in", "out")
    run(plan, share=Share(0, 2))
    work = UnfinishedWork(plan)
    (done,) = (file for file in plan.files if work.is_done(file))
    finished = Path(work.finished(done.name))
    finished.write_bytes(finished.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(files.FileError, match=f"out/{done.name}: verify: tensor .* element 65535 is 0.0"):
        run(plan, verify="all")
    assert not work.is_done(done)
    assert run(plan, verify="all").verified == 2 * BIG.size


def test_unfinished_work_is_no_source_of_its_own_target(folder: Path) -> None:
    two()
    run(planned("in", "out"), share=Share(0, 2))
    with pytest.raises(
        files.FileError, match="^out.partial/files: lies in .*out.partial, which is for unfinished work"
    ):
        run(planned("out.partial/files", "out"), restart=True)
    assert len(os.listdir("out.partial/files")) == 1


def test_a_target_that_lost_a_file_is_not_taken_for_done(folder: Path) -> None:
    two()
    run(planned("in", "out"))
    os.unlink("out/a.safetensors")
    with pytest.raises(files.FileError, match="out: exists already"):
        run(planned("in", "out"))
    weight_map = {"a": "a.safetensors", "b": "b.safetensors"}
    Path("in/all.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    run(planned("in", "indexed"))
    os.unlink("indexed/all.safetensors.index.json")
    with pytest.raises(files.FileError, match="indexed: exists already"):
        run(planned("in", "indexed"))
    # Nor one whose unfinished work could not be removed: nothing is converted, and what is there stays.
    with begun(planned("in", "new")):
        os.mkdir("new")
    Path("new/mine").touch()
    with pytest.raises(files.FileError, match="new: exists already; expected a new or empty folder"):
        UnfinishedWork(planned("in", "new")).check()


def test_what_was_written_before_is_verified(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    run(planned("in", "out"))
    argv = ["convert", "in", "out", "--to", "FLOAT16", "--verify", "all"]
    with monkeypatch.context() as patch:
        # As on a file system that can only be read.
        patch.setattr(os, "mkdir", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
        assert main(argv) == 0
    said = (
        "out: was written by another run of the same conversion; verified: 131,072 elements are equal to those of the"
    )
    assert capsys.readouterr().out.startswith(said)
    for known in (None, True):
        assert main(["convert", "in", "json", "--to", "FLOAT16", "--json"]) == 0
        assert json.loads(capsys.readouterr().out).get("written_by_another_run") is known
    written = Path("out/b.safetensors")
    written.write_bytes(written.read_bytes()[:-2] + b"\0\0")
    assert main(argv) == 1
    assert "out/b.safetensors: verify: tensor 'b': element 65535 is 0.0" in capsys.readouterr().err
    assert leftovers(folder, "in") == ["json", "out"]
    assert written.exists()


def test_a_part_that_was_exchanged_since_is_missed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs("in")
    files.save("in/a.safetensors", {"w": BIG.reshape(64, -1)})
    argv = ["convert", "in", "out", "--to", "INT8", "--scale", "block", "--verify"]
    assert main(argv) == 0
    held = files.load("out/a.safetensors")
    files.save("out/a.safetensors", {"w": held["w"], "other": held["w.scales"]})
    assert main(argv) == 1
    assert "out/a.safetensors: verify: tensor 'w.scales' is missing" in capsys.readouterr().err


@pytest.mark.parametrize("changed", ["in/m.onnx.bin", "in/b.safetensors"])
def test_files_that_change_are_noticed(changed: str, folder: Path) -> None:
    """External data, and scales in another file than their weight."""
    os.makedirs("in")
    save_external("in/m.onnx", BIG)
    files.save("in/a.safetensors", {"w": np.ones((4, 8), np.float32).astype(dtype("FLOAT8E4M3FN").numpy)})
    files.save("in/b.safetensors", {"w_scale_inv": np.ones((1, 1), np.float32), "x.weight": BIG})
    before = planned("in", "out")
    with pytest.raises(files.FileError, match=f"{changed}: was changed (while|since)"):
        run(before, lambda done: os.utime(changed, (2, 2)))
    assert planned("in", "out").fingerprint != before.fingerprint
    with pytest.raises(files.FileError, match=f"{changed}: was changed since"):
        run(before, restart=True)


def test_a_change_that_keeps_size_and_time_is_noticed(folder: Path) -> None:
    files.save("in.safetensors", {"x": BIG, "y": BIG})
    files.save("other.safetensors", {"x": BIG, "z": BIG})
    times = os.stat("in.safetensors")

    def replace(done: int) -> None:
        """By a file that has other numbers in the midst alone."""
        data = bytearray(Path("in.safetensors").read_bytes())
        data[len(data) // 2] ^= 1
        Path("new.safetensors").write_bytes(data)
        os.utime("new.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
        os.replace("new.safetensors", "in.safetensors")

    before = planned("in.safetensors", "out.safetensors")
    with pytest.raises(files.FileError, match=r"in.safetensors: was changed while it was converted"):
        run(before, replace)
    os.replace("other.safetensors", "in.safetensors")
    os.utime("in.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    # Work on another file of the same size and time is not gone on with.
    with pytest.raises(files.FileError, match=r"in.safetensors: was changed since"):
        run(before)
    with pytest.raises(files.FileError, match="holds unfinished work of another conversion"):
        run(planned("in.safetensors", "out.safetensors"))
    assert leftovers(folder, "in.safetensors", "out.safetensors.partial") == []


def test_a_share_of_nothing_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"x": BIG})
    two()
    for source, target in (("in.safetensors", "out.safetensors"), ("in", "out")):
        options = ["convert", source, target, "--to", "FLOAT16", "--shard"]
        for _ in range(2):
            assert main([*options, "2/3"]) == 0
            number = "1 file" if source != "in" else "2 files"
            assert capsys.readouterr().out == f"{target}: this share has nothing to do; others have {number}\n"
            assert leftovers(folder, "in.safetensors", "in", "out.safetensors") == []
        for share in ("0/3", "1/3"):
            assert main([*options, share]) == 0
        capsys.readouterr()
        # Nor one that comes late.
        assert main([*options, "2/3"]) == 0
        said = "was written by another run" if source == "in" else "nothing to do"
        assert said in capsys.readouterr().out
        assert leftovers(folder, "in.safetensors", "in", "out.safetensors") == ["out"] * (source == "in")


def test_of_two_processes_with_one_share_one_publishes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("in.safetensors", {"x": BIG})
    argv, lock = ["in.safetensors", "out.safetensors", "--to", "FLOAT16", "--shard", "0/2"], work_folder.lock

    def after(act: Callable[[], object]) -> None:
        """Another process acts while this one waits for the lock alone."""

        def waiting(file: IO[bytes], wait: bool, shared: bool = False) -> bool:
            if wait:
                monkeypatch.setattr(work_folder, "lock", lock)
                act()
            return lock(file, wait, shared)

        monkeypatch.setattr(work_folder, "lock", waiting)

    after(lambda: main(["convert", *argv]))
    assert main(["convert", *argv]) == 0
    assert leftovers(folder, "in.safetensors") == ["out.safetensors"]
    # OUT is now an older one.
    after(lambda: shutil.rmtree("out.safetensors.partial"))
    said = failure(capsys, *argv)
    assert "was removed by another process before out.safetensors was written" in said
    assert "is kept" not in said
    assert leftovers(folder, "in.safetensors") == ["out.safetensors"]


def test_a_worker_that_comes_late_begins_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    plan, take = planned("in", "out"), WorkFolder.take

    def late(at: WorkFolder, **how: bool) -> bool:
        monkeypatch.setattr(WorkFolder, "take", take)
        run(plan)
        return take(at, **how)

    with begun(plan, is_share=True):
        pass
    monkeypatch.setattr(WorkFolder, "take", late)
    stream.run_file(plan, plan.files[0], Options(), Outcome(plan))
    assert leftovers(folder, "in") == ["out"]


def test_a_run_that_found_the_target_written_leaves_alone_who_begins_anew(folder: Path) -> None:
    two()
    plan = planned("in", "out")
    run(plan)
    # A rest of the run that wrote it.
    os.mkdir("out.partial", 0o700)
    with begun(plan) as first:
        shutil.rmtree("out")
        with begun(plan):
            assert not first.discard_alone()
        assert leftovers(folder, "in") == ["out.partial"]


def test_who_does_not_get_the_lock_alone_does_not_publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.save("in.safetensors", {"x": BIG})
    lock = work_folder.lock
    monkeypatch.setattr(work_folder, "lock", lambda file, wait, shared=False: not wait and lock(file, wait, shared))
    with pytest.raises(work_module.Busy, match=r"out\.safetensors: another process is converting it"):
        run(planned("in.safetensors", "out.safetensors"), share=Share(0, 2))
    assert leftovers(folder, "in.safetensors") == ["out.safetensors.partial"]


LOSSY = {"a": BIG, "big": np.full(1 << 14, 1e6, np.float32), "c": BIG}


@pytest.mark.parametrize("stage", ["tensor", "file", "all"])
def test_what_was_lost_is_allowed_for_one_run(stage: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs("in")
    files.save("in/1.safetensors", LOSSY)
    files.save("in/2.safetensors", {"d": BIG})
    plan, done = planned("in", "out"), []

    def interrupt(nbytes: int) -> None:
        # With 0 a stage begins.
        done.extend([nbytes] if nbytes else [])
        if len(done) == {"tensor": 3, "file": 4}.get(stage):
            raise KeyboardInterrupt

    def killed(work: UnfinishedWork) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(UnfinishedWork, "publish", killed)
        run(plan, interrupt, allow_loss=True)
    message = r"tensor 'big' from FLOAT to FLOAT16 would lose 16,384 of its 16,384 non-zero values"
    with pytest.raises(ValueError, match=message):
        run(plan)
    if stage == "all":
        # Nor does a share that did none of it put it in the target's place.
        with pytest.raises(ValueError, match=message):
            run(plan, share=Share(2, 3))
    assert not os.path.exists("out")
    # The work is still there for who allows it.
    outcome = run(plan, allow_loss=True)
    assert outcome.resumed >= BIG.nbytes + LOSSY["big"].nbytes
    assert leftovers(folder, "in") == ["out"]
