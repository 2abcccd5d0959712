# SPDX-License-Identifier: Apache-2.0
"""What is looked at beside the cast: samples of large tensors, all of small ones."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpucast import files
from gpucast.checkpoints.losses import statistics
from gpucast.cli import main
from scaled_files import numbers, save

pytestmark = pytest.mark.usefixtures("folder")


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
    monkeypatch.setattr(statistics, "EXACT", x.size)
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
        for run in statistics.runs(total, start, min(step, total - start)):
            yield from range(start + run.start, start + run.stop)


def test_the_sample_does_not_depend_on_the_pieces() -> None:
    total = 3 * (1 << 18) + 77
    whole = list(cuts(total, total))
    assert len(whole) == len(set(whole)) == 6 * 1024
    for step in (1 << 10, 12_348, 1 << 17, 1 << 19):
        assert list(cuts(total, step)) == whole


def test_long_rows_are_stored_in_another_way_in_little_memory() -> None:
    """Of blocks of 128 rows of 40,960: what has been compared is let go before the next is read."""
    chance = np.random.default_rng(0)
    codes = chance.integers(0, 120, (512, 40_960)).astype(np.uint8)
    scales = chance.integers(118, 130, (4, 320)).astype(np.uint8)
    tensors = {"l.weight": codes.view(ml_dtypes.float8_e4m3fn), "l.scale": scales.view(ml_dtypes.float8_e8m0fnu)}
    save("in/m.safetensors", tensors)
    Path("in/config.json").write_text("{}")
    del codes, tensors
    argv = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "deepseek", "--verify", "--quiet"]
    tracemalloc.start()
    assert main(["convert", "in", "out", *argv]) == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Three pieces of 128 * 40,960 DOUBLE are 120 MiB, beside codes; two more were held before.
    assert peak < 190 << 20
    with files.TensorFile("out/m.safetensors") as file:
        assert {tensor.name: tensor.kind for tensor in file.tensors}["l.weight_scale_inv"] == "F32"
