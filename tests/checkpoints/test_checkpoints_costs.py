# SPDX-License-Identifier: Apache-2.0
"""What is looked at beside the cast: samples of large tensors, all of small ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpucast import files
from gpucast.checkpoints.losses import sample
from gpucast.cli import main
from scaled_files import numbers

LARGE = (2048, 2048)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        # A block of 128x128 stands for 16 pieces of 2^20.
        (["--to", "FLOAT8E4M3FN", "--scale", "block"], 1 << 14),
        (["--to", "FLOAT8E4M3FN", "--scale", "mx"], 4 * 1024),
        (["--to", "FLOAT8E4M3FN", "--scale", "per-tensor"], 4 * 1024),
        (["--to", "BFLOAT16"], 4 * 1024),
    ],
)
def test_verify_compares_a_sample(options: list[str], compared: int, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"w": np.full((2048, 2048), 3, np.float32)})
    capsys.readouterr()
    assert main(["convert", "in.safetensors", "out.safetensors", *options, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified_elements"] == compared


def report(x: np.ndarray[Any, Any], *options: str) -> dict[str, Any]:
    files.save("in.safetensors", {"w": x})
    argv = ["convert", "in.safetensors", "out.safetensors", *options, "--quiet", "--overwrite"]
    assert main([*argv, "--report", "r.json"]) == 0
    (tensor,) = json.loads(Path("r.json").read_text())["tensors"]
    return dict(tensor)


OPTIONS = [["--to", "FLOAT16"], ["--to", "FLOAT8E4M3FN", "--scale", "block"], ["--to", "INT4", "--scale", "block"]]


@pytest.mark.parametrize("options", OPTIONS)
def test_small_tensors_are_examined_as_a_whole(options: list[str]) -> None:
    found = report(numbers(128, 300), *options)
    assert found["examined"] == found["elements"] == 128 * 300
    counts = found["log2_magnitudes"]["before"]
    assert sum(counts["counts"]) + counts["zero"] == 128 * 300


@pytest.mark.parametrize("options", OPTIONS)
def test_a_sample_of_a_large_tensor_is_near_the_whole(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.tile(numbers(512, 512), (4, 4)) + np.linspace(0, 1, 2048, dtype=np.float32)
    sampled = report(x, *options)
    assert 0.005 < sampled["examined"] / x.size < 0.01
    monkeypatch.setattr(sample, "EXACT", x.size)
    whole = report(x, *options)
    assert whole["examined"] == x.size
    # Counts are of all elements.
    for field in ("elements", "nonzero", "saturated", "underflowed", "nan", "infinite"):
        assert sampled[field] == whole[field], field
    assert sampled["sqnr_db"] == pytest.approx(whole["sqnr_db"], abs=0.5)
    assert sampled["mean_relative_error"] == pytest.approx(whole["mean_relative_error"], rel=0.1)
    assert sampled["max_relative_error"] <= whole["max_relative_error"]


def cuts(total: int, step: int) -> Iterator[int]:
    for start in range(0, total, step):
        for run in sample.runs(total, start, min(step, total - start)):
            yield from range(start + run.start, start + run.stop)


def test_the_sample_does_not_depend_on_the_pieces() -> None:
    total = 3 * (1 << 18) + 77
    whole = list(cuts(total, total))
    assert len(whole) == len(set(whole)) == 6 * 1024
    for step in (1 << 10, 12_348, 1 << 17, 1 << 19):
        assert list(cuts(total, step)) == whole
