# SPDX-License-Identifier: Apache-2.0
"""A conversion is written whole, or not at all, and says which: stopped at each step, shared, in a shared folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conversions import planned, results_of, run
from gpucast import checkpoints, files
from gpucast.checkpoints.reporting import html
from gpucast.checkpoints.running import directory, locks, place, publication, staging
from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.staging import Staging
from gpucast.cli import main
from gpucast.core import places
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


# ---- stopped at each step ----


def cases(folder: Path) -> list[tuple[str, str]]:
    """Folders, and what is converted there: to a new folder, an empty one, over an old file, to two files at once."""
    two(folder / "sharded" / "in")
    (folder / "sharded" / "in" / "all.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    )
    two(folder / "empty" / "in")
    (folder / "empty" / "out").mkdir()
    (folder / "single").mkdir()
    files.save(str(folder / "single" / "in.safetensors"), {"a": BIG})
    files.save(str(folder / "single" / "out.safetensors"), {"old": np.arange(3)})
    save_external(folder / "model" / "in.onnx", BIG)
    return [
        ("sharded", "in out"),
        ("empty", "in out"),
        ("single", "in.safetensors out.safetensors"),
        ("model", "in.onnx out.onnx"),
    ]


@pytest.mark.parametrize("how", ["kill", "kill and restart", "error", "interrupt"])
def test_a_run_stopped_at_any_step_is_complete_or_undone(how: str, tmp_path: Path, exhaustive: bool) -> None:
    told = []
    for name, argv in cases(tmp_path):
        command = ["convert", *argv.split(), "--overwrite", "--quiet", "--to"]
        # Another conversion, which takes the place of the one that was killed.
        again = {"again": [*command, "BFLOAT16", "--restart"]} if "restart" in how else {}
        if not (again and name == "empty"):
            every = 1 if exhaustive or "kill" in how else 2
            told.append(
                {
                    "argv": [*command, "FLOAT16"],
                    "folder": str(tmp_path / name),
                    "how": how.removesuffix(" and restart"),
                    **again,
                }
            )
            told[-1]["every"] = every
    results = results_of("stopped_runs.py", told)
    assert [result["problems"] for result in results] == [[]] * len(told)
    # That the steps are seen, and in the order that docs/checkpoints.md tells.
    for told_of, result in zip(told, results, strict=True):
        steps = [step for step in result["steps"] if how == "kill" and step.startswith(("replace", "mkdir", "rmdir"))]
        wanted = ["mkdir out", "replace job.json.", "replace work", "replace job.json.", "replace files", "rmdir out"]
        assert how != "kill" or in_order(wanted, steps), (told_of, steps)


def in_order(wanted: list[str], steps: list[str]) -> bool:
    left = iter(steps)
    return all(any(step.startswith(one) for step in left) for one in wanted)


# ---- what cannot be told, what is missing ----


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_told_is_not_taken_for_missing(
    number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at a finished file fails: the run took it for another share's, and ended well."""
    two()
    plan, look, failed = planned("in", "out"), os.stat, list[str]()

    def told(path: Any, *args: Any, **keywords: Any) -> Any:
        if str(path).endswith("files/a.safetensors") and os.path.exists("out.partial/files/b.safetensors"):
            failed.append(path)
            if len(failed) == 1:
                raise OSError(number, os.strerror(number), path)
        return look(path, *args, **keywords)

    monkeypatch.setattr(os, "stat", told)
    with pytest.raises(OSError, match=os.strerror(number)):
        run(plan)
    assert failed
    monkeypatch.undo()
    os.chdir(folder)
    assert len(run(plan).results) == 2
    assert leftovers(folder, "in") == ["out"]


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
    before, work = sorted(os.listdir()), Staging(plan)
    work.begin()
    missing = plan.files[-1].names[-1]
    with work.concluding() as is_ours:
        assert is_ours
        os.unlink(work.finished(missing))
        with pytest.raises(files.FileError, match=f"{missing}: was finished, and is not there"):
            work.publish()
    assert sorted(os.listdir()) == before
    run(plan)
    assert os.path.exists(argv[1])


def test_an_interrupted_run_does_not_discard_what_another_one_publishes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two()
    plan, ended = planned("in", "out"), list[BaseException]()
    with stopped_before_publishing(monkeypatch):
        run(plan)

    def interrupted() -> None:
        def interrupt(done: int) -> None:
            raise KeyboardInterrupt

        try:
            run(plan, interrupt)
        except BaseException as error:
            ended.append(error)

    work = Staging(plan)
    work.begin()
    thread = threading.Thread(target=interrupted)
    with work.concluding() as is_ours:
        assert is_ours
        thread.start()
        # It ends at once, or waits until all is published: both are right.
        thread.join(0.5)
        work.publish()
        work.discard()
    thread.join(60)
    assert [type(error) for error in ended] == [KeyboardInterrupt]
    assert leftovers(folder, "in") == ["out"]
    assert leftovers(folder / "out") == [".gpucast.json", "a.safetensors", "b.safetensors"]


def test_a_run_says_that_another_one_has_discarded_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where somebody removes the folder by hand, at the last moment: success was told, and nothing was there."""
    files.save("in.safetensors", {"x": BIG})
    two()
    for argv in (("in.safetensors", "out.safetensors"), ("in", "out")):
        plan = planned(*argv)
        conclude = Staging.concluding

        def concluding(work: Staging, other: Staging = Staging(plan), conclude: Any = conclude) -> Any:  # noqa: B008
            other.discard()
            return conclude(work)

        with monkeypatch.context() as patch, pytest.raises(files.FileError, match="was removed by another process"):
            patch.setattr(Staging, "concluding", concluding)
            run(plan)
        assert leftovers(folder, "in", "in.safetensors") == []


def test_two_processes_that_finish_at_once_both_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds nothing left to do but to see that the target is there, as it was finished."""
    files.save("in.safetensors", {"x": BIG})
    two()
    for argv in (("in.safetensors", "out.safetensors"), ("in", "out")):
        plan, first = planned(*argv), list[checkpoints.Outcome]()
        conclude = Staging.concluding

        @contextlib.contextmanager
        def concluding(work: Staging, conclude: Any = conclude, plan: Any = plan, first: Any = first) -> Iterator[bool]:
            if not first:
                first.append(checkpoints.Outcome(plan))
                work.release()
                checkpoints.run(plan, checkpoints.Options(), first[0])
            with conclude(work) as is_ours:
                yield is_ours

        with monkeypatch.context() as patch:
            patch.setattr(Staging, "concluding", concluding)
            second = run(plan)
        assert first[0].results and second.was_written
        assert os.path.exists(argv[1])
    assert leftovers(folder, "in", "in.safetensors") == ["out", "out.safetensors"]


def test_a_job_that_is_written_while_it_is_looked_for_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    plan = planned("in", "out")
    Staging(plan).begin()
    names = directory.Directory.names
    os.rename("out.partial/job.json", "job.json")

    def written(found: directory.Directory, name: str = os.curdir) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            os.rename("job.json", "out.partial/job.json")
        return names(found, name)

    monkeypatch.setattr(directory.Directory, "names", written)
    assert Staging(plan).is_seen()


# ---- two results are one publication ----


def test_external_data_is_taken_back_where_the_model_cannot_have_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_external("in.onnx", BIG)
    rename, argv = os.replace, ["in.onnx", "out.onnx", "--to", "FLOAT16"]

    def failing(source: Any, target: Any, **folders: Any) -> None:
        if str(target).endswith("out.onnx") and ".partial" not in str(target) and "work" not in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        rename(source, target, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        assert "Input/output error" in failure(capsys, *argv)
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == []
    assert main(["convert", *argv, "--quiet"]) == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == ["out.onnx", "out.onnx.data"]


def test_what_was_put_there_meanwhile_is_not_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_external("in.onnx", BIG)
    plan = planned("in.onnx", "out.onnx")

    def put(done: int) -> None:
        Path("out.onnx.data").write_text("mine")

    with pytest.raises(files.FileError, match=r"out.onnx.data: exists, and would be replaced"):
        run(plan, put)
    assert Path("out.onnx.data").read_text() == "mine"
    assert leftovers(folder, "in.onnx", "in.onnx.bin") == ["out.onnx.data"]


class Stopped(BaseException):
    """As a kill: the renames that would undo what was done are stopped as well."""


@pytest.mark.parametrize("what", ["goes on", "is undone"])
@pytest.mark.parametrize("at", range(6))
def test_any_number_of_results_is_one_publication(
    at: int, what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results that no plan has yet: three files of one source. Stopped for good before each rename or removal."""
    os.makedirs("out.partial/files")
    os.chmod("out.partial", 0o700)
    names = ["1.data", "2.data", "out"]
    for name in names:
        Path("out.partial/files", name).write_text(name)
    Path("out").write_text("old")
    parent = directory.Directory(str(folder))
    work = directory.private(parent, "out.partial", make=False)
    assert work is not None
    results = [publication.result_of(work, f"files/{name}", name) for name in names]
    begun = jobs.Job("this one")
    jobs.write(work, begun, {})
    rename, renamed = os.replace, list[Any]()

    def stopping(*args: Any, **folders: Any) -> None:
        if len(renamed) >= at:
            raise Stopped
        renamed.append(args)
        rename(*args, **folders)

    with monkeypatch.context() as patch, contextlib.suppress(Stopped):
        patch.setattr(os, "replace", stopping)
        publication.Publication(work, parent, begun, {}).publish(results)
    job = jobs.read(work)
    assert job is not None
    published = publication.Publication(work, parent, job, {})
    # The first rename is that of the job with what it publishes.
    assert published.is_complete() == (at >= 4)
    assert leftovers(folder) == sorted({"out", "out.partial", *names[: max(0, at - 1)]})
    if what == "goes on":
        published.complete()
        assert published.is_complete() == (at >= 1)
    else:
        published.undo()
    is_written = at >= 4 or (what == "goes on" and at >= 1)
    assert {name: Path(name).read_text() for name in names if os.path.exists(name)} == (
        {name: name for name in names} if is_written else {"out": "old"}
    )
    assert leftovers(folder / "out.partial" / "files") == ([] if is_written else names)


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
    assert re.fullmatch(r"out is written and whole; \S+/out.partial/work/\d.jsonl: Input/output error\n", said)
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

    monkeypatch.setattr(html, "page", full)
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
    Staging(plan).begin()
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
    Staging(planned("in", "out")).begin()
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
        patch.setattr(directory, "_why_not_private", lambda found: "can be written by others")
        run(planned("in", "out"))
    assert leftovers(folder, "in") == ["out"]


@pytest.mark.parametrize(
    "place_of_link",
    [
        "out.partial",
        "out.partial/job.json",
        "out.partial/lock",
        "out.partial/work/0.part/a.safetensors",
        "out.partial/work/0.jsonl.new",
        "out.partial/files/all.safetensors.index.json",
        "out.partial/files/.gpucast.json",
    ],
)
def test_nothing_is_written_through_a_link(place_of_link: str, folder: Path) -> None:
    two()
    Path("in/all.safetensors.index.json").write_text('{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}')
    os.mkdir("elsewhere")
    precious = folder / "elsewhere" / "precious"
    precious.write_text("mine")
    plan = planned("in", "out")
    if place_of_link != "out.partial":
        Staging(plan).begin()
        os.makedirs(os.path.dirname(place_of_link), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place_of_link)
    os.symlink(folder / "elsewhere" if place_of_link == "out.partial" else precious, place_of_link)
    with pytest.raises((OSError, files.FileError), match=r"symbolic links|is a link|in the way"):
        run(plan)
    assert precious.read_text() == "mine"
    assert leftovers(folder / "elsewhere") == ["precious"]
    assert not os.path.exists("out")


def test_work_goes_to_the_folder_that_was_opened(folder: Path) -> None:
    """Who can write the parent puts a link in the folder's place while we work: nothing is written behind it."""
    files.save("in.safetensors", {"x": BIG, "y": BIG})
    os.makedirs("elsewhere/work/0.part")
    precious = [Path("elsewhere/work/0.jsonl"), Path("elsewhere/work/0.part/out.safetensors")]
    for path in precious:
        path.write_text("mine")

    def exchange(done: int) -> None:
        if not os.path.islink("out.safetensors.partial"):
            os.rename("out.safetensors.partial", "moved")
            os.symlink("elsewhere", "out.safetensors.partial")

    with pytest.raises(files.FileError):
        run(planned("in.safetensors", "out.safetensors"), exchange)
    assert [path.read_text() for path in precious] == ["mine", "mine"]
    assert not os.path.exists("out.safetensors")


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
    os.mkdir("sticky")
    os.mkdir("sticky/out")
    os.chmod("sticky", 0o1777)
    # Root may do all.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **k: "closed" not in str(path) and access(path, mode, **k))
    for more in ([], ["--dry-run"]):
        said = failure(capsys, "in", "closed/out", "--to", "FLOAT16", *more)
        assert said == "gpucast convert: closed/out: Permission denied\n"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "sticky/out: Operation not permitted" in failure(capsys, "in", "sticky/out", "--to", "FLOAT16", "--dry-run")


def test_a_mounted_path_is_known_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system lists it: blanks are codes."""
    (folder / "a b").mkdir()
    (folder / "mounts").write_text(f"1 2 3:4 / {folder}/a\\040b rw - ext4 none rw\n")
    opened = open
    monkeypatch.setattr(place, "open", lambda path, mode: opened(folder / "mounts", mode), raising=False)
    status = os.stat("a b")
    assert place.is_mount_point(f"{folder}/a b", status, os.stat("."))
    assert not place.is_mount_point(f"{folder}/a", status, os.stat("."))


# ---- locks and paths ----


def test_locks_are_shared_or_held_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lock").touch()
    with open("lock", "r+b") as one, open("lock", "r+b") as other:
        assert locks.lock(one, wait=False, shared=True) and locks.lock(other, wait=False, shared=True)
        assert not locks.lock(other, wait=False)
        for number, expected in [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EACCES, False)]:
            fails(monkeypatch, number)
            assert locks.lock(one, wait=False) is expected
        for number in (errno.EIO, errno.ESTALE):
            fails(monkeypatch, number)
            with pytest.raises(OSError, match=os.strerror(number)):
                locks.lock(one, wait=False)


def fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", flock)


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
