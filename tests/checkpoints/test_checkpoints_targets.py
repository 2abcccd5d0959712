# SPDX-License-Identifier: Apache-2.0
"""What a conversion does where something is at OUT already, or has no room there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpucast import files
from gpucast.cli import main
from scaled_files import numbers, save
from tensors import leftovers


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save("in/a.safetensors", {"w": numbers(8, 8)})
    return tmp_path


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["convert", *argv, "--to", "FLOAT16", "--quiet"]) == 1
    return capsys.readouterr().err


def test_a_file_that_exists_is_replaced_only_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out.safetensors").write_bytes(b"mine")
    for more in ([], ["--dry-run"], ["--restart"]):
        message = failure(capsys, "in/a.safetensors", "out.safetensors", *more)
        assert "out.safetensors: exists already; give --overwrite to replace it" in message
    assert Path("out.safetensors").read_bytes() == b"mine"
    assert leftovers(Path(), "in", "out.safetensors") == []
    argv = ["convert", "in/a.safetensors", "out.safetensors", "--to", "FLOAT16", "--overwrite", "--quiet"]
    assert main(argv) == 0
    assert files.load("out.safetensors")["w"].dtype == "float16"


def test_a_finished_folder_is_not_begun_anew(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "in", "out", "--to", "FLOAT16", "--quiet"]) == 0
    before = Path("out/a.safetensors").stat()
    message = failure(capsys, "in", "out", "--restart")
    assert "out: is finished, and --restart discards unfinished work alone; remove it" in message
    assert Path("out/a.safetensors").stat() == before


@pytest.mark.parametrize("source", ["in", "in/model.safetensors.index.json"])
@pytest.mark.parametrize("name", ["one.npy", "one.NPZ", "one.onnx"])
def test_a_folder_does_not_become_a_folder_with_the_name_of_a_file(
    source: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in/model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    assert f"{name}: is the name of a file" in failure(capsys, source, name)
    assert not Path(name).exists()


def test_too_little_room_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in/notes.txt").write_text("12345")
    for free, status in ((132, 1), (133, 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        for more in (["--dry-run"], []):
            assert main(["convert", "in", "out", "--to", "FLOAT16", "--quiet", *more]) == status
        if status:
            assert "out: needs 133 bytes, and 132 are free there" in capsys.readouterr().err
            assert leftovers(Path(), "in") == []


@pytest.mark.parametrize("name", ["model.bin", "consolidated.00.pth", "x.PT"])
def test_files_of_pytorch_are_refused_with_advice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(b"PK")
    assert "save them as .safetensors first" in failure(capsys, name, "out.safetensors")
    # What is no weights is copied.
    Path("in/training_args.bin").write_bytes(b"PK")
    assert main(["convert", "in", "out", "--to", "FLOAT16", "--quiet"]) == 0
    assert Path("out/training_args.bin").read_bytes() == b"PK"
    Path("in/pytorch_model-00001-of-00002.bin").write_bytes(b"PK")
    assert "pytorch_model-00001-of-00002.bin: holds weights" in failure(capsys, "in", "other")
