# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong: the source is untouched, nothing half-written has a final name, and the next run goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversions import checkpoint, contents, convert, failure, planned, run
from gpucast import checkpoints, files
from gpucast.checkpoints.running import cast_tensor, staging
from gpucast.checkpoints.running.staging import Staging
from gpucast.cli import main
from gpucast.core.dtypes import DType
from onnx_models import save_external
from tensors import full_disk, leftovers

BIG = np.linspace(-1, 1, 1 << 18, dtype=np.float32)


def two(folder: Path, x: np.ndarray = BIG[:500]) -> None:
    checkpoint(folder, {name: {f"{name}{i}": x[i:] for i in range(3)} | {f"{name}n": np.arange(4)} for name in "ab"})


@pytest.mark.parametrize("after", [0, 100, 10_000, 300_000])
def test_a_full_disk(after: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two(folder / "in", BIG)
    files.save("one.safetensors", {"x": BIG})
    files.save("old.npz", {"old": np.arange(3)})
    save_external(folder / "models" / "m.onnx", BIG)
    before = contents(folder)
    for argv in (
        ["in", "out"],
        ["one.safetensors", "new.safetensors"],
        ["one.safetensors", "old.npz"],
        ["models", "ms"],
    ):
        with full_disk(after):
            message = failure(capsys, *argv, "--to", "FLOAT16")
        assert f"{argv[1]}" in message
        assert "File too large" in message
        assert contents(folder) == before
    assert leftovers(folder, "in", "one.safetensors", "old.npz", "models") == []


def test_a_full_disk_keeps_what_is_worth_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save("in.safetensors", {f"t{i}": BIG for i in range(4)})
    monkeypatch.setattr(staging, "WORTH_KEEPING", 1 << 20)
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


def test_a_truncated_shard(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    two(folder / "in", BIG)
    shard = folder / "in" / "b.safetensors"
    whole = shard.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        shard.write_bytes(whole[:size])
        assert "b.safetensors" in failure(capsys, "in", "out", "--to", "FLOAT16")
    shard.write_bytes(whole)
    # Between the look at it and the work.
    planned = checkpoints.make_plan

    def cut(*argv: Any) -> Any:
        plan = planned(*argv)
        os.truncate(shard, len(whole) // 2)
        return plan

    monkeypatch.setattr(checkpoints, "make_plan", cut)
    assert "in/b.safetensors: " in failure(capsys, "in", "out", "--to", "FLOAT16")
    assert leftovers(folder, "in") == []


def test_damaged_work_is_done_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut may do: the journal is on the disk, not all of the data is; or half of its last line is."""
    files.save("in.safetensors", {f"t{i}": BIG for i in range(4)})
    monkeypatch.setattr(staging, "WORTH_KEEPING", 0)
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
    wanted = BIG.astype(np.float16).tobytes()
    assert all(x.tobytes() == wanted for x in files.load("out.safetensors").values())


def test_what_did_not_come_to_the_disk_is_written_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of fsync it may read as if it had come."""
    files.save("in.safetensors", {"a": BIG, "b": BIG})
    monkeypatch.setattr(staging, "WORTH_KEEPING", 0)
    plan, synced = planned("in.safetensors", "out.safetensors"), os.fsync

    def refused(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/out.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced(descriptor)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(errno.EIO)):
        patch.setattr(os, "fsync", refused)
        run(plan)
    assert leftovers(folder, "in.safetensors") == ["out.safetensors.partial"]
    assert not any(map(os.path.exists, Staging(plan).parts(plan.files[0])))
    assert run(plan).resumed == 0


def test_a_wrong_result_is_not_given_a_name(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two(folder / "in")
    cast = cast_tensor._cast_on

    def wrong(device: str | None, x: Any, dst: DType, attributes: Any) -> Any:
        y = cast(device, x, dst, attributes)
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
        patch.setattr(staging, "WORTH_KEEPING", 0)
        failure(capsys, "in", "out", "--to", "FLOAT16", "--verify")
    monkeypatch.setattr(cast_tensor, "_cast_on", cast)
    assert convert("in", "out", "--to", "FLOAT16", "--verify", "all") == 0
    # Among many elements some are looked at.
    files.save("in.npy", {"x": np.ones(5000, np.float32)})
    monkeypatch.setattr(
        cast_tensor, "_cast_on", lambda device, x, dst, attributes: cast(device, x + np.float32(1), dst, attributes)
    )
    assert "element" in failure(capsys, "in.npy", "out.npy", "--to", "FLOAT16", "--verify")
    assert convert("in.npy", "out.npy", "--to", "FLOAT16") == 0
