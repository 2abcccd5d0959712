# SPDX-License-Identifier: Apache-2.0
"""A conversion says whether it is written, and refuses places and folders where it cannot be, or is not safe."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversions import begun, planned, run
from gpucast import checkpoints, files
from gpucast.checkpoints.reporting import outcome_json
from gpucast.checkpoints.running import partial, staging
from gpucast.checkpoints.running.staging import Staging
from gpucast.cli import main
from gpucast.core import places, trusted_files
from gpucast.core.dtypes import dtype
from onnx_models import save_external
from strangers import STRANGER, as_root
from tensors import leftovers

BIG = np.linspace(-1, 1, 1 << 12, dtype=np.float32)


def two(name: Path | str = "in") -> None:
    os.makedirs(name)
    for shard in "ab":
        files.save(f"{name}/{shard}.safetensors", {shard: BIG})


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["convert", *argv, "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


# ---- what is missing, or was put there ----


@contextlib.contextmanager
def stopped_before_publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def killed(work: Staging) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(staging, "WORTH_KEEPING", 0)
        patch.setattr(Staging, "publish", killed)
        yield


@pytest.mark.parametrize("argv", [("in", "out"), ("in.safetensors", "out.safetensors"), ("in.onnx", "out.onnx")])
def test_nothing_is_published_where_a_result_is_missing(
    argv: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    save_external("in.onnx", BIG)
    files.save("in.safetensors", {"x": BIG})
    plan = planned(*argv)
    with stopped_before_publishing(monkeypatch):
        run(plan)
    before, missing = sorted(os.listdir()), plan.files[-1].names[-1]
    with begun(plan) as work, work.concluding() as is_ours:
        assert is_ours
        os.unlink(work.finished(missing))
        with pytest.raises(files.FileError, match=f"{missing}: was finished, and is not there"):
            work.publish()
    assert sorted(os.listdir()) == before
    run(plan)
    assert os.path.exists(argv[1])


@pytest.mark.parametrize("name", ["out.onnx", "out.onnx.data"])
def test_what_was_put_there_meanwhile_is_not_replaced(name: str, folder: Path) -> None:
    save_external("in.onnx", BIG)
    choice = checkpoints.Choice(dtype("FLOAT16"))
    plan = checkpoints.make_plan("in.onnx", "out.onnx", checkpoints.Request(choice, {}), overwrite=False)

    def put(done: int) -> None:
        Path(name).write_text("mine")

    with pytest.raises(files.FileError, match=f"{name}: exists"):
        run(plan, put)
    assert Path(name).read_text() == "mine"
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == [name]


def test_what_cannot_be_completed_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when the external data had its place, which somebody has removed since."""
    save_external("in.onnx", BIG)
    plan, place_of = planned("in.onnx", "out.onnx"), os.replace

    def killed(source: Any, target: Any) -> None:
        place_of(source, target)
        if str(target) == str(folder / "out.onnx.data"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        run(plan)
    os.unlink("out.onnx.data")
    with pytest.raises(files.FileError, match=r"out\.onnx\.data: was being written.*give --restart to begin anew"):
        run(plan)
    run(plan, restart=True)
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == ["out.onnx", "out.onnx.data"]


# ---- after all is written ----


def test_an_error_of_tidying_up_does_not_hide_that_all_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    argv, remove = ["convert", "in", "out", "--to", "FLOAT16", "--quiet", "--report", "report.json"], os.unlink

    def failing(path: Any, *args: Any, **keywords: Any) -> None:
        if str(path).endswith(".jsonl"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        remove(path, *args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        assert main(argv) == 0
    said = capsys.readouterr().err
    assert re.fullmatch(r"out is written and whole; \S+/out.partial: Input/output error\n", said)
    assert leftovers(folder, "in") == ["out", "out.partial", "report.json"]
    assert len(json.loads(Path("report.json").read_text())["tensors"]) == 2
    # The next run removes what is left.
    assert main(argv) == 0
    assert leftovers(folder, "in") == ["out", "report.json"]


def test_an_error_of_the_report_does_not_hide_that_all_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("in.safetensors", {"x": BIG})

    def full(document: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(outcome_json, "page", full)
    said = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT16", "--report", "report.html")
    whole, error = said.splitlines()
    assert whole == "out.safetensors is written and whole"
    assert error.endswith("report.html: No space left on device")
    assert leftovers(folder, "in.safetensors") == ["out.safetensors"]


def test_a_name_of_5000_digits_is_reported(folder: Path) -> None:
    names = ["7" * 5000, "8" * 4999, "9", "٣", "x" + "0" * 4500 + "1"]
    files.save("in.safetensors", {name: np.linspace(-1, 1, 100, dtype=np.float32) for name in names})
    argv = ["convert", "in.safetensors", "out.safetensors", "--to", "FLOAT16", "--quiet", "--report", "report.html"]
    assert main(argv) == 0
    assert names[0] in Path("report.html").read_text()
    assert leftovers(folder, "in.safetensors") == ["out.safetensors", "report.html"]


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
    for path in [Path("out.safetensors.partial"), *Path("out.safetensors.partial").rglob("*")]:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for more in ([], ["--restart"], ["--dry-run"]):
        said = failure(capsys, *argv, *more)
        assert f"out.safetensors.partial: belongs to another user (uid {STRANGER}); nothing in it is trusted" in said
    assert Path("precious").read_text() == "mine"


def test_a_folder_that_others_can_write_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two()
    with begun(planned("in", "out")):
        assert stat.S_IMODE(os.stat("out.partial").st_mode) == 0o700
    os.chmod("out.partial", 0o770)
    assert "out.partial: can be written by others; nothing in it is trusted" in failure(
        capsys, "in", "out", "--to", "FLOAT16"
    )
    # What is written is as open as the user's umask says.
    os.chmod("out.partial", 0o700)
    run(planned("in", "out"))
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat("out").st_mode) == 0o777 & ~mask
    assert stat.S_IMODE(os.stat("out/a.safetensors").st_mode) == 0o666 & ~mask


def test_a_file_system_that_knows_no_owners_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    with monkeypatch.context() as patch:
        patch.setattr(trusted_files, "why_not_ours", lambda found: "can be written by others")
        run(planned("in", "out"))
    assert leftovers(folder, "in") == ["out"]


def test_a_link_in_the_place_of_the_folder_is_not_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two()
    os.mkdir("elsewhere")
    os.symlink("elsewhere", "out.partial")
    for more in ([], ["--restart"], ["--dry-run"]):
        assert "out.partial: is in the way, and is a link" in failure(capsys, "in", "out", "--to", "FLOAT16", *more)
    assert os.listdir("elsewhere") == []


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
    os.mkdir("new.partial")
    with mounted(folder / "new.partial", *of):
        assert "new.partial: is mounted on its own" in failure(capsys, "in", "new", "--to", "FLOAT16")


def test_a_file_system_for_reading_alone_is_known_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two()
    os.mkdir("small")
    with mounted(folder / "small", "-t", "tmpfs", "-o", "ro", "none"):
        for more in ([], ["--dry-run"]):
            said = failure(capsys, "in", "small/out", "--to", "FLOAT16", *more)
            assert said == "gpucast convert: small/out: Read-only file system\n"


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


def test_a_mounted_path_is_known_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system lists it: blanks are codes."""
    (folder / "a b").mkdir()
    (folder / "mounts").write_text(f"1 2 3:4 / {folder}/a\\040b rw - ext4 none rw\n")
    opened = open
    monkeypatch.setattr(partial, "open", lambda path, mode: opened(folder / "mounts", mode), raising=False)
    assert partial.is_mount_point(f"{folder}/a b")
    assert not partial.is_mount_point(f"{folder}/a")


# ---- locks and paths ----


def test_locks_are_shared_or_held_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lock").touch()
    with open("lock", "r+b") as one, open("lock", "r+b") as other:
        assert partial.lock(one, wait=False, shared=True) and partial.lock(other, wait=False, shared=True)
        assert not partial.lock(other, wait=False)
        for number, expected in [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EACCES, False)]:
            fails(monkeypatch, number)
            assert partial.lock(one, wait=False) is expected
        for number in (errno.EIO, errno.ESTALE):
            fails(monkeypatch, number)
            with pytest.raises(OSError, match=os.strerror(number)):
                partial.lock(one, wait=False)


def fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(partial.fcntl, "flock", flock)


def test_a_path_is_resolved_or_cannot_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs("real/deep")
    os.symlink("real", "link")
    os.symlink("deep/new", "real/dangling")
    os.symlink("loop", "loop")
    real = str(folder / "real")
    for path, expected in [
        ("link", real),
        ("link/", real),
        ("link/new", f"{real}/new"),
        ("link/new/", f"{real}/new"),
        ("link/dangling", f"{real}/deep/new"),
        ("nowhere/new", str(folder / "nowhere/new")),
        ("link/deep/../x", f"{real}/x"),
    ]:
        assert places.resolved(path) == expected == os.path.realpath(path)
    with pytest.raises(OSError, match="symbolic links"):
        places.resolved("loop")
    look = os.lstat

    def failing(path: Any, **keywords: Any) -> Any:
        if str(path).endswith("link"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return look(path, **keywords)

    monkeypatch.setattr(os, "lstat", failing)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        places.resolved("link/new")
