# SPDX-License-Identifier: Apache-2.0
"""What a reading of the code by an attacker's eyes found in conversions (docs/security-reading.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from endings import HANGS
from gpucast import files
from gpucast.checkpoints.running import target
from gpucast.checkpoints.running.partial import Partial
from gpucast.checkpoints.scales import comfyui
from strangers import STRANGER, as_root

pytestmark = pytest.mark.usefixtures("folder")

ROOT = Path(gpucast.__file__).parents[1]


def convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which is ended should it hang."""
    return subprocess.run(
        [sys.executable, "-m", "gpucast", "convert", *arguments, "--to", "FLOAT16", "--quiet"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )


def test_a_pipe_in_the_place_of_the_mark_of_a_finished_folder_is_not_waited_for() -> None:
    os.mkdir("in")
    files.save("in/x.safetensors", {"x": np.ones(4, np.float32)})
    os.mkdir("out")
    os.mkfifo("out/.gpucast.json")
    ended = convert("in", "out")
    assert ended.returncode == 1
    assert "out: exists already; expected a new or empty folder" in ended.stderr


def test_a_mark_that_is_nested_too_deep_is_none() -> None:
    """RecursionError."""
    os.mkdir("out")
    Path("out/.gpucast.json").write_text("[" * 100_000)
    assert target._done_mark("out") is None


def test_a_job_that_is_no_object_is_in_the_way(folder: Path) -> None:
    """AttributeError."""
    os.mkdir("out.partial", 0o700)
    Path("out.partial/job.json").write_text("[]")
    with pytest.raises(files.FileError, match="is in the way, and nothing that gpucast left"):
        Partial(f"{folder}/out").job()


@as_root
def test_a_file_system_that_maps_owners_is_told_by_a_new_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir("out.partial", 0o700)
    os.chown("out.partial", STRANGER, STRANGER)
    status = os.fstat

    def mapped(handle: int) -> os.stat_result:
        found = list(status(handle))
        found[4] = STRANGER
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", mapped)
    assert Partial(f"{folder}/out").exists()
    assert os.listdir() == ["out.partial"]


# ---- descriptions of ComfyUI ----


def test_a_description_that_many_weights_share_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MB of it for 10,000 weights took minutes, and its text in as many errors 10 GB."""
    parsed: list[object] = []
    parse = comfyui.file_limits.parsed_json

    def counted(text: Any) -> Any:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(comfyui.file_limits, "parsed_json", counted)
    layers = comfyui.Layers({"a": json.dumps({"format": "int8"})})
    for number in range(100):
        assert comfyui.layer_of(f"{number}.a.weight", None, layers) == {"format": "int8"}
    assert comfyui.layer_of("b.weight", None, layers) == {}
    assert len(parsed) == 1


def test_an_error_shows_little_of_a_description() -> None:
    names = [f"{number}.a.weight" for number in range(10)]
    metadata = {comfyui.METADATA: json.dumps({"layers": {"a": {"format": "n" * 100_000, "more": "m" * 100_000}}})}
    header: dict[str, Any] = {"__metadata__": metadata}
    for at, name in enumerate([*names, *(f"{name}_scale" for name in names)]):
        header[name] = {"dtype": "F8_E4M3", "shape": [1, 1], "data_offsets": [at, at + 1]}
    text = json.dumps(header).encode()
    Path("x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(2 * len(names)))
    ended = convert("x.safetensors", "y.safetensors")
    assert ended.returncode == 1
    assert "has ComfyUI's format {'format': 'nnnnn" in ended.stderr
    assert len(ended.stderr) < 1000
