# SPDX-License-Identifier: Apache-2.0
"""Several runs on the same work, at once or one after the other: none takes what another has not finished for done."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpucast import checkpoints, files
from gpucast.checkpoints import staging
from gpucast.checkpoints.share import Share
from gpucast.checkpoints.staging import Staging
from gpucast.cli import main
from gpucast.dtypes import dtype
from tensors import leftovers

BIG = np.linspace(-1, 1, 1 << 16, dtype=np.float32)
ATTRIBUTES = {"saturate": True, "round_mode": "up", "opset": 28, "rounding": None, "overflow": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(staging, "WORTH_KEEPING", 0)
    return tmp_path


def planned(source: str, target: str) -> checkpoints.Plan:
    return checkpoints.make_plan(source, target, checkpoints.Request(checkpoints.Choice(dtype("FLOAT16")), ATTRIBUTES))


def run(plan: checkpoints.Plan, advance: Any = lambda done: None, **options: Any) -> checkpoints.Outcome:
    outcome = checkpoints.Outcome(plan)
    checkpoints.run(plan, checkpoints.Options(**options), outcome, advance)
    return outcome


def two(name: str = "in") -> None:
    os.makedirs(name)
    for shard in "ab":
        files.save(f"{name}/{shard}.safetensors", {shard: BIG})


def external(path: str, x: np.ndarray) -> None:
    """A model whose only initializer lies beside it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "test", values[:1], values[1:], [numpy_helper.from_array(x, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    location = os.path.basename(path) + ".bin"
    onnx.save(proto, path, save_as_external_data=True, location=location, size_threshold=100)


def test_a_file_is_finished_only_when_it_is_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    external("in/m.onnx", BIG)
    plan, verified = planned("in", "out"), list[str]()
    work = Staging(plan)

    def interrupted(path: str, written: str, file: Any, *rest: Any) -> int:
        verified.append(file.name)
        assert not work.is_done(file)
        assert os.path.basename(written) == file.name
        if file.name == "b.safetensors" and verified.count(file.name) == 1:
            raise KeyboardInterrupt
        return verify(path, written, file, *rest)

    running = sys.modules["gpucast.checkpoints.run"]
    verify = running.verify  # type: ignore[attr-defined]
    monkeypatch.setattr(running, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(plan, verify="all")
    assert not work.is_done(plan.files[1])
    # What has been verified is not looked at again; what has not, is, though nothing of it is written anew.
    outcome = run(plan, verify="sampled")
    assert verified == ["a.safetensors", "b.safetensors", "b.safetensors", "m.onnx"]
    assert outcome.verified == BIG.size + 1024 + 1024
    assert outcome.resumed == 2 * BIG.nbytes
    assert leftovers(folder, "in") == ["out"]


def test_finished_files_are_verified_by_the_run_that_is_told_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two()
    plan = planned("in", "out")
    run(plan, share=Share(0, 2))
    work = Staging(plan)
    (done,) = (file for file in plan.files if work.is_done(file))
    finished = Path(work.finished(done.name))
    finished.write_bytes(finished.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(files.FileError, match=f"out/{done.name}: verify: tensor .* element 65535 is 0.0"):
        run(plan, verify="all")
    assert not work.is_done(done)
    assert run(plan, verify="all").verified == 2 * BIG.size


def test_work_that_goes_on_is_not_discarded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two()
    argv = ["convert", "in", "out", "--to", "FLOAT16", "--restart", "--quiet"]
    errors = []

    def restart(done: int) -> None:
        if not errors:
            assert main(argv) == 1
            errors.append(capsys.readouterr().err)

    run(planned("in", "out"), restart)
    assert errors == ["gpucast convert: out: another process is converting it at this moment; end it first\n"]
    assert leftovers(folder, "in") == ["out"]


def test_the_work_of_another_process_is_not_taken_for_ones_own(folder: Path) -> None:
    """As where a file system knows no locks, or somebody removed the folder."""
    files.save("in.safetensors", {"x": BIG})
    plan = planned("in.safetensors", "out.safetensors")
    other = Staging(plan)

    def replace(done: int) -> None:
        other.discard()
        other.begin()
        with other.part(plan.files[0]) as part:
            part.write(b"half")

    with pytest.raises(files.FileError, match=r"out.safetensors.partial: was removed by another process"):
        run(plan, replace)
    assert not os.path.exists("out.safetensors")

    def begin_another(done: int) -> None:
        other.discard()
        Staging(planned("b.safetensors", "out.safetensors")).begin()

    files.save("b.safetensors", {"x": BIG[:10]})
    with pytest.raises(OSError, match="No such file"):
        run(plan, begin_another)
    # What failed leaves the new work alone.
    assert leftovers(folder, "in.safetensors", "b.safetensors") == ["out.safetensors.partial"]
    with pytest.raises(files.FileError, match="was removed by another process"), other.part(plan.files[0]):
        pass


def test_one_process_concludes(folder: Path) -> None:
    two()
    plan = planned("in", "out")
    work = Staging(plan)
    work.begin()
    with work.concluding() as is_ours:
        assert is_ours
        work.discard()
    with work.concluding() as is_ours:
        assert not is_ours


def test_a_kill_may_leave_the_job_alone(folder: Path) -> None:
    two()
    plan = planned("in", "out")
    Staging(plan).begin()
    os.rmdir("out.partial/work")
    os.rmdir("out.partial/files")
    assert len(run(plan).results) == 2


def test_a_target_that_lost_a_file_is_not_taken_for_done(folder: Path) -> None:
    two()
    run(planned("in", "out"))
    os.unlink("out/a.safetensors")
    with pytest.raises(files.FileError, match="out: exists already"):
        run(planned("in", "out"))


def test_external_data_that_changes_is_noticed(folder: Path) -> None:
    os.makedirs("in")
    external("in/m.onnx", BIG)
    before = planned("in", "out")
    os.utime("in/m.onnx.bin", (1, 1))
    assert planned("in", "out").fingerprint != before.fingerprint
    with pytest.raises(files.FileError, match=r"in/m.onnx: was changed since"):
        run(before)
    with pytest.raises(files.FileError, match=r"in/m.onnx: was changed while"):
        run(planned("in", "out"), lambda done: os.utime("in/m.onnx.bin", (2, 2)), restart=True)


def test_a_protected_file_is_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("in.safetensors", {"x": BIG})
    files.save("out.safetensors", {"x": BIG[:1]})
    before = Path("out.safetensors").read_bytes()
    # Root may write whatever it is.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "out." not in str(path) and access(path, mode))
    assert main(["convert", "in.safetensors", "out.safetensors", "--to", "FLOAT16"]) == 1
    assert capsys.readouterr().err == "gpucast convert: out.safetensors: Permission denied\n"
    with pytest.raises(PermissionError, match="out.safetensors"):
        files.save("out.safetensors", {"x": BIG})
    assert Path("out.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["in.safetensors", "./out.safetensors", "link"])
def test_a_report_replaces_neither_source_nor_target(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.save("in.safetensors", {"x": BIG})
    os.symlink("in.safetensors", "link")
    before = Path("in.safetensors").read_bytes()
    assert main(["convert", "in.safetensors", "out.safetensors", "--to", "FLOAT16", "--report", name]) == 1
    assert f"{name}: is read or written by the conversion itself" in capsys.readouterr().err
    assert Path("in.safetensors").read_bytes() == before
    assert leftovers(folder, "in.safetensors", "link") == []
