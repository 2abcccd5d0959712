# SPDX-License-Identifier: Apache-2.0
"""What is looked at beside the cast: samples of large tensors, all of small ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpucast import files
from gpucast.checkpoints.losses import sample
from gpucast.cli import main
from scaled_files import numbers

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
