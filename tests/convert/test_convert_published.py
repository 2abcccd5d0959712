# SPDX-License-Identifier: Apache-2.0
"""A conversion says whether it is written, and refuses places and folders where it cannot be, or is not safe."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from conversions import BIG, begun, checkpoint, convert, failure, planned, run, two
from gpucast import convert as conversion
from gpucast import files
from gpucast.cli import main
from gpucast.convert.running import cast_tensor, work_folder
from gpucast.convert.running import work as work_module
from gpucast.convert.running.outcome import Share
from gpucast.convert.running.work import UnfinishedWork
from gpucast.convert.running.work_folder import WorkFolder
from gpucast.core import places
from gpucast.core.dtypes import DType, dtype
from onnx_models import save_external
from strangers import STRANGER, as_root
from tensors import full_disk, leftovers

# ---- what is missing, or was put there ----


@pytest.mark.parametrize(
    ("source", "name"), [("in/in.onnx", "out.onnx"), ("in/in.onnx", "out.onnx.data"), ("in", "out/mine")]
)
def test_what_was_put_there_meanwhile_is_not_replaced(source: str, name: str, folder: Path) -> None:
    os.mkdir("in")
    save_external("in/in.onnx", BIG)
    choice, target = conversion.Choice(dtype("FLOAT16")), "out" if source == "in" else "out.onnx"
    plan = conversion.make_plan(source, target, conversion.Request(choice, {}), overwrite=False)

    def put(done: int) -> None:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        Path(name).write_text("mine")

    there = name.partition("/")[0]
    with pytest.raises(files.FileError, match=f"{there}: exists"):
        run(plan, put)
    assert Path(name).read_text() == "mine"
    assert leftovers(folder, "in") == [there]


def _run_killed(plan: conversion.ConversionPlan) -> None:
    """A run that is killed when the external data has its place."""
    place_of = os.replace

    def killed(source: Any, target: Any) -> None:
        place_of(source, target)
        if str(target) == os.path.abspath("out.onnx.data"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        run(plan)


def test_what_cannot_be_completed_is_told(folder: Path) -> None:
    """Somebody has removed the external data since."""
    save_external("in.onnx", BIG)
    plan = planned("in.onnx", "out.onnx")
    _run_killed(plan)
    os.unlink("out.onnx.data")
    with pytest.raises(files.FileError, match=r"out\.onnx\.data: was being written.*give --restart to begin anew"):
        run(plan)
    run(plan, restart=True)
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == ["out.onnx", "out.onnx.data"]


def test_a_share_goes_on_publishing_for_one_that_was_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_external("in.onnx", BIG)
    plan, take = planned("in.onnx", "out.onnx"), WorkFolder.take

    def late(at: WorkFolder, **how: bool) -> bool:
        monkeypatch.setattr(WorkFolder, "take", take)
        _run_killed(plan)
        return take(at, **how)

    with begun(plan):
        pass
    monkeypatch.setattr(WorkFolder, "take", late)
    assert run(plan, share=Share(0, 2)).resumed == BIG.nbytes
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == ["out.onnx", "out.onnx.data"]


# ---- another's folder, links ----


@as_root
def test_a_folder_of_a_stranger_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """He made it in a folder that all may write, and put links in it to a file that this user alone may write."""
    files.save("in.safetensors", {"x": BIG})
    Path("precious").write_text("mine")
    argv = ["in.safetensors", "out.safetensors", "--to", "FLOAT16"]
    plan = planned("in.safetensors", "out.safetensors")
    with begun(plan):
        os.mkdir("out.safetensors.partial/work/0.part")
    os.symlink(folder / "precious", "out.safetensors.partial/work/0.part/out.safetensors")
    # The folder around is his, too.
    for path in [folder, *Path("out.safetensors.partial").rglob("*"), Path("out.safetensors.partial")]:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for more in ([], ["--restart"], ["--dry-run"]):
        said = failure(capsys, *argv, *more)
        assert f"out.safetensors.partial: belongs to another user (uid {STRANGER}); nothing in it is trusted" in said
    assert Path("precious").read_text() == "mine"


def test_unfinished_work_is_its_users_and_the_result_as_open_as_the_umask_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    with begun(planned("in", "out")):
        assert stat.S_IMODE(os.stat("out.partial").st_mode) == 0o700
    os.chmod("out.partial", 0o770)
    with pytest.raises(files.FileError, match=r"out\.partial: can be written by others; nothing in it is trusted"):
        run(planned("in", "out"))
    with monkeypatch.context() as patch:
        _shows(patch, mode=0o770)
        run(planned("in", "known"))
        UnfinishedWork(planned("in", "out")).check()
        os.chmod("out.partial", 0o777)
        with pytest.raises(files.FileError, match="can be written by others"):
            UnfinishedWork(planned("in", "out")).check()
    os.chmod("out.partial", 0o700)
    run(planned("in", "out"))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat("out").st_mode) == 0o777 & ~mask
    assert stat.S_IMODE(os.stat("out/a.safetensors").st_mode) == 0o666 & ~mask


def _shows(patch: pytest.MonkeyPatch, uid: int = -1, mode: int = 0o700) -> None:
    """As on a file system that shows folders with one mode, files with another one, and both with one owner."""
    make_folder, make_file = tempfile.mkdtemp, tempfile.TemporaryFile

    def folder(dir: str) -> str:
        made = make_folder(dir=dir)
        os.chmod(made, mode)
        os.chown(made, uid, uid)
        return made

    def file(dir: str) -> IO[bytes]:
        made = make_file(dir=dir)
        os.fchown(made.fileno(), uid, uid)
        return made

    patch.setattr(tempfile, "mkdtemp", folder)
    patch.setattr(tempfile, "TemporaryFile", file)


@as_root
@pytest.mark.parametrize("link", ["work/0.part", "work/0.jsonl", "files"])
def test_where_owners_are_mapped_neither_open_folders_nor_links_are_accepted(
    link: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    plan = planned("in", "out")
    with begun(plan):
        os.chown("out.partial", STRANGER, STRANGER)
    refused = pytest.raises(files.FileError, match=f"out.partial: belongs to another user .uid {STRANGER}.; nothing")
    _shows(monkeypatch, STRANGER)
    os.chmod("out.partial", 0o777)
    with refused:
        run(plan)
    os.chmod("out.partial", 0o700)
    os.rmdir("out.partial/files")
    os.symlink(folder / "in", f"out.partial/{link}")
    with refused:
        run(plan)
    os.unlink(f"out.partial/{link}")
    run(plan)
    assert leftovers(folder, "in") == ["out"]


# ---- mount points and other file systems ----


@contextlib.contextmanager
def mounted(target: Path, *options: str) -> Iterator[None]:
    done = subprocess.run(["mount", *options, str(target)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(target)], check=True)


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_a_mount_point_is_refused_before_the_work(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two()
    files.save("in.safetensors", {"x": BIG})
    for name in ("out", "of this file system", "of this file system/x"):
        os.mkdir(name)
    os.rmdir("of this file system/x")
    argv = ["in", "out", "--to", "FLOAT16"]
    of = ("-t", "tmpfs", "none") if kind == "tmpfs" else ("--bind", "of this file system")
    with mounted(folder / "out", *of):
        said = failure(capsys, *argv)
        assert said.startswith("gpucast convert: out: is a mount point, or a volume of its own, ")
        assert "choose another name, such as out/out" in said
        # Not after the work, and the dry run knows.
        assert failure(capsys, *argv, "--dry-run") == said
        assert leftovers(folder, "in", "in.safetensors", "of this file system") == ["out"]
        assert main(["convert", "in", "out/out", "--to", "FLOAT16", "--quiet"]) == 0
        assert leftovers(folder / "out") == ["out"]
    for path in ("out.npz", "file"):
        Path(path).write_bytes(b"old")
    with mounted(folder / "out.npz", "--bind", "file"):
        said = failure(capsys, "in.safetensors", "out.npz", "--to", "FLOAT16")
        assert said.startswith("gpucast convert: out.npz: is mounted on its own, so that nothing can take its place")
        assert failure(capsys, "in.safetensors", "out.npz", "--to", "FLOAT16", "--dry-run") == said


def test_a_place_that_may_not_be_written_is_known_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    os.mkdir("closed")
    # Root may do all.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **k: "closed" not in str(path) and access(path, mode, **k))
    for more in ([], ["--dry-run"]):
        said = failure(capsys, "in", "closed/out", "--to", "FLOAT16", *more)
        assert said == "gpucast convert: closed/out: Permission denied\n"
    Path("closed.safetensors").write_bytes(b"mine")
    said = failure(capsys, "in/a.safetensors", "closed.safetensors", "--to", "FLOAT16")
    assert said == "gpucast convert: closed.safetensors: Permission denied\n"
    with pytest.raises(PermissionError, match="closed.safetensors"):
        files.save("closed.safetensors", {"x": BIG})
    assert Path("closed.safetensors").read_bytes() == b"mine"
    os.makedirs("sticky/out")
    os.chmod("sticky", 0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "sticky/out: Operation not permitted" in failure(capsys, "in", "sticky/out", "--to", "FLOAT16", "--dry-run")


# ---- locks and paths ----


def test_locks_are_shared_or_held_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lock").touch()
    with open("lock", "r+b") as one, open("lock", "r+b") as other:
        assert work_folder.lock(one, wait=False, shared=True) and work_folder.lock(other, wait=False, shared=True)
        assert not work_folder.lock(other, wait=False)
        flock = MagicMock()
        monkeypatch.setattr(work_folder.fcntl, "flock", flock)
        for number, expected in [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EACCES, False)]:
            flock.side_effect = OSError(number, os.strerror(number))
            assert work_folder.lock(one, wait=False) is expected
        flock.side_effect = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            work_folder.lock(one, wait=False)


def test_a_path_is_resolved_or_cannot_be(folder: Path) -> None:
    os.makedirs("real/deep")
    for target, link in (("real", "link"), ("deep/new", "real/dangling"), ("loop", "loop")):
        os.symlink(target, link)
    for path in ("link", "link/", "link/new", "link/new/", "link/dangling", "nowhere/new", "link/deep/../x"):
        assert places.resolved(path) == os.path.realpath(path)
    with pytest.raises(OSError, match="symbolic links"):
        places.resolved("loop")


# ---- what is at OUT already, or has no room there ----


def test_a_file_that_exists_is_replaced_only_when_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"x": BIG})
    Path("out.safetensors").write_bytes(b"mine")
    argv = ["in.safetensors", "out.safetensors", "--to", "FLOAT16"]
    for more in ([], ["--dry-run"], ["--restart"]):
        assert "out.safetensors: exists already; give --overwrite to replace it" in failure(
            capsys, *argv, *more, overwrite=False
        )
    assert Path("out.safetensors").read_bytes() == b"mine"
    assert main(["convert", *argv, "--overwrite", "--quiet"]) == 0
    assert leftovers(folder, "in.safetensors", "out.safetensors") == []


def test_a_finished_folder_is_not_begun_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two()
    run(planned("in", "out"))
    before = Path("out/a.safetensors").stat()
    said = failure(capsys, "in", "out", "--to", "FLOAT16", "--restart")
    assert "out: is finished, and --restart discards unfinished work alone; remove it" in said
    assert Path("out/a.safetensors").stat() == before


def test_too_little_room_is_told_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    Path("in/notes.txt").write_text("12345")
    needed = 5 + 2 * BIG.nbytes // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    assert f"and {needed - 1:,} are free there" in failure(capsys, "in", "out", "--to", "FLOAT16")
    assert f"and {needed - 1:,} are free there" in failure(capsys, "in", "out", "--to", "FLOAT16", "--dry-run")
    assert leftovers(folder, "in") == []


# ---- work that failed is gone on with (faults and signals at every call of the system: tests/fuzz/test_faults.py) ----

LARGE = np.linspace(-1, 1, 1 << 18, dtype=np.float32)


def shards(folder: Path, x: np.ndarray = LARGE[:500]) -> None:
    checkpoint(folder, {name: {f"{name}{i}": x[i:] for i in range(3)} | {f"{name}n": np.arange(4)} for name in "ab"})


def test_a_full_disk_keeps_what_is_worth_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("in.safetensors", {f"t{i}": LARGE for i in range(4)})
    monkeypatch.setattr(work_module, "WORTH_KEEPING", 1 << 20)
    with full_disk(1_200_000):
        message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT16")
    assert "out.safetensors.partial: the same command goes on from there" in message
    assert leftovers(folder, "in.safetensors") == ["out.safetensors.partial"]
    # Other work does not take its place unasked.
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert "holds unfinished work of another conversion" in message
    assert leftovers(folder, "in.safetensors") == ["out.safetensors.partial"]
    assert main(["convert", "in.safetensors", "out.safetensors", "--to", "FLOAT16"]) == 0
    assert "2,097,152 bytes had been finished before" in capsys.readouterr().out
    assert set(files.load("out.safetensors")) == {"t0", "t1", "t2", "t3"}
    with full_disk(1_200_000):
        failure(capsys, "in.safetensors", "out.safetensors", "--to", "BFLOAT16")
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT16", "--restart") == 0
    assert leftovers(folder, "in.safetensors", "out.safetensors") == []


def test_damaged_work_is_done_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut may do: the journal is on the disk, not all of the data is; or half of its last line is."""
    files.save("in.safetensors", {f"t{i}": LARGE for i in range(4)})
    monkeypatch.setattr(work_module, "WORTH_KEEPING", 0)
    with full_disk(1_800_000):
        failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT16")
    work = Path("out.safetensors.partial/work")
    part, journal = work / "0.part" / "out.safetensors", work / "0.jsonl"
    assert journal.read_bytes().count(b"\n") == 3
    with part.open("r+b") as file:
        file.seek(600_000)
        file.write(b"\xff" * 10)
    with journal.open("ab") as file:
        file.write(b'{"name": "t3", "su')
    assert main(["convert", "in.safetensors", "out.safetensors", "--to", "FLOAT16", "--verify", "all"]) == 0
    assert "2,097,152 bytes had been finished before" in capsys.readouterr().out
    wanted = LARGE.astype(np.float16).tobytes()
    assert all(x.tobytes() == wanted for x in files.load("out.safetensors").values())


def test_what_did_not_come_to_the_disk_is_written_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of fsync it may read as if it had come."""
    files.save("in.safetensors", {"a": LARGE, "b": LARGE})
    monkeypatch.setattr(work_module, "WORTH_KEEPING", 0)
    plan, synced = planned("in.safetensors", "out.safetensors"), os.fsync

    def refused(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/out.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced(descriptor)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        patch.setattr(os, "fsync", refused)
        run(plan)
    assert leftovers(folder, "in.safetensors") == ["out.safetensors.partial"]
    assert not any(map(os.path.exists, UnfinishedWork(plan).parts(plan.files[0])))
    assert run(plan).resumed == 0


def test_a_wrong_result_is_not_given_a_name(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(folder / "in")
    cast = cast_tensor._cast_on

    def wrong(engine: Any, x: Any, dst: DType, attributes: Any) -> Any:
        y = cast(engine, x, dst, attributes)
        if y.size > 17:
            y.view(dst.code_numpy)[17] += 1
        return y

    monkeypatch.setattr(cast_tensor, "counted", lambda rule: None)
    monkeypatch.setattr(cast_tensor, "_cast_on", wrong)
    message = failure(capsys, "in", "out", "--to", "FLOAT16", "--verify")
    assert "out/a.safetensors: verify: tensor 'a0': element 17 is" in message
    assert leftovers(folder, "in") == []
    # Nor gone on with.
    with monkeypatch.context() as patch:
        patch.setattr(work_module, "WORTH_KEEPING", 0)
        failure(capsys, "in", "out", "--to", "FLOAT16", "--verify")
    monkeypatch.setattr(cast_tensor, "_cast_on", cast)
    assert convert("in", "out", "--to", "FLOAT16", "--verify", "all") == 0
    # Among many elements some are looked at.
    files.save("in.npy", {"x": np.ones(5000, np.float32)})
    monkeypatch.setattr(
        cast_tensor, "_cast_on", lambda engine, x, dst, attributes: cast(engine, x + np.float32(1), dst, attributes)
    )
    assert "element" in failure(capsys, "in.npy", "out.npy", "--to", "FLOAT16", "--verify")
    assert convert("in.npy", "out.npy", "--to", "FLOAT16") == 0


def test_an_interrupted_conversion_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("x.npy", {"x": BIG})
    Path("y.npz").write_bytes(b"old")
    monkeypatch.setattr(cast_tensor, "counted", lambda rule: None)
    monkeypatch.setattr(cast_tensor, "_cast_on", MagicMock(side_effect=KeyboardInterrupt))
    assert main(["convert", "x.npy", "y.npz", "--to", "FLOAT16", "--overwrite"]) == 130
    assert capsys.readouterr() == ("", "gpucast convert: interrupted\n")
    assert leftovers(folder, "x.npy") == ["y.npz"] and Path("y.npz").read_bytes() == b"old"
