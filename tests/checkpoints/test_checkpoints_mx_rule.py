# SPDX-License-Identifier: Apache-2.0
"""The rule that finds the scales of MX: OCP's, or the next power of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import files
from gpucast.cli import main
from scaled_files import convert, numbers, save


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save("in/model.safetensors", {"l.weight": numbers(64, 96)})
    Path("in/config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("to", "style", "rule", "format"),
    [
        ("FLOAT8E4M3FN", "gpucast", None, "mxfp8e4m3"),
        ("FLOAT8E4M3FN", "gpucast", "up", "mxfp8e4m3_up"),
        ("FLOAT6E2M3", "gpucast", "up", "mxfp6e2m3_up"),
        ("FLOAT4E2M1", "gpucast", "up", "mxfp4_up"),
        ("FLOAT8E4M3FN", "compressed-tensors", None, "mxfp8e4m3_up"),
        ("FLOAT8E4M3FN", "compressed-tensors", "floor", "mxfp8e4m3"),
        ("FLOAT4E2M1", "compressed-tensors", None, "mxfp4"),
    ],
)
def test_the_rule_that_finds_the_scales(to: str, style: str, rule: str | None, format: str) -> None:
    options = ["--to", to, "--scale", "mx", "--style", style, *(["--mx-rule", rule] if rule else [])]
    assert convert("in", "out", *options, "--verify", "all") == 0
    assert convert("out", "back", "--to", "FLOAT") == 0
    wanted = gpucast.quantize(numbers(64, 96), format).dequantize()
    assert_same(files.load("back/model.safetensors")["l.weight"], wanted)


def test_rounding_up_has_the_smaller_error() -> None:
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    floor, up = (np.square(gpucast.quantize(x, name).dequantize() - x).mean() for name in ("mxfp8e4m3", "mxfp8e4m3_up"))
    assert 1.2 < floor / up < 1.6


def test_the_rule_is_for_mx_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "in", "out", "--to", "FLOAT4E2M1", "--scale", "nvfp4", "--mx-rule", "up"]) == 1
    assert "--mx-rule goes with --scale mx" in capsys.readouterr().err
