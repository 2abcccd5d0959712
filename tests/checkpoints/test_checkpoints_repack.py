# SPDX-License-Identifier: Apache-2.0
"""Codes with scales that go to another layout with every value kept, and those that cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codes import assert_same
from conversions import convert, failure, model, numbers, quantized
from gpucast import files
from gpucast.checkpoints.scales import repack
from gpucast.cli import main

pytestmark = pytest.mark.usefixtures("folder")

E8M0 = ml_dtypes.float8_e8m0fnu
F8 = numbers(256, 384).astype(ml_dtypes.float8_e4m3fn)
POWERS = np.exp2(np.random.default_rng(1).integers(-20, 20, (2, 3))).astype(np.float32)


def checked(tensors: dict[str, Any], *options: str, lossless: bool = True) -> dict[str, Any]:
    """Convert to other scales; the written tensors. The numbers are those that there were if `lossless`."""
    model(tensors)
    assert main(["convert", "in", "out", *options, "--verify", "all", "--quiet", "--report", "r.json"]) == 0
    (told,) = json.loads(Path("r.json").read_text())["tensors"]
    assert told.get("lossless", False) is lossless
    assert (told["max_relative_error"] == 0) is lossless
    for source, target in (("in", "before"), ("out", "after")):
        assert convert(f"{source}/model.safetensors", f"{target}.safetensors", "--to", "DOUBLE") == 0
    before, after = (files.load(f"{name}.safetensors")["l.weight"] for name in ("before", "after"))
    if lossless:
        assert_same(before, after)
    return files.load("out/model.safetensors")


DEEPSEEK = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "deepseek"]
MX = ["--to", "FLOAT8E4M3FN", "--scale", "mx", "--style", "compressed-tensors"]


def test_deepseek_v4_as_deepseek_v3() -> None:
    written = checked({"l.weight": F8, "l.scale": POWERS.astype(E8M0)}, *DEEPSEEK)
    assert_same(written["l.weight"], F8)
    assert_same(written["l.weight_scale_inv"], POWERS)


def test_power_of_two_scales_of_blocks_as_mx() -> None:
    written = checked({"l.weight": F8, "l.weight_scale_inv": POWERS}, *MX)
    assert_same(written["l.weight"], F8)
    wide = np.repeat(np.repeat(POWERS, 128, 0), 4, 1)
    assert_same(written["l.weight_scale"].view(E8M0), wide.astype(E8M0))


def test_scales_that_are_no_powers_of_two_do_not_go_to_mx() -> None:
    checked({"l.weight": F8, "l.weight_scale_inv": POWERS * np.float32(1.5)}, *MX, lossless=False)


def test_mxfp4_in_another_layout() -> None:
    q = quantized(numbers(64, 96), "FLOAT4E2M1", "mx")
    raw = q.data.get().view(np.uint8)
    packed = raw[:, 0::2] | raw[:, 1::2] << 4
    options = ["--to", "FLOAT4E2M1", "--scale", "mx", "--style", "compressed-tensors"]
    written = checked({"l.weight": packed.view(np.int8), "l.scale": q.scales}, *options)
    assert_same(written["l.weight_packed"], packed)
    assert_same(written["l.weight_scale"], q.scales.view(np.uint8))


def test_larger_blocks_do_not_keep_the_values() -> None:
    scales = np.repeat(POWERS, 2, 1).astype(np.float32) * np.array([1, 4] * 3, np.float32)
    tensors = {"l.weight": F8, "l.weight_scale": np.repeat(scales, 128, 0)}
    checked(tensors, *DEEPSEEK, lossless=False)


def test_a_value_that_is_not_kept_stops_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model({"l.weight": F8, "l.scale": POWERS.astype(E8M0)})
    parts = repack.Repacked._parts

    def wrong(self: Any, *given: Any) -> Any:
        found = parts(self, *given)
        found.scales[1, 2] *= 2
        return found

    monkeypatch.setattr(repack.Repacked, "_parts", wrong)
    assert "tensor 'l.weight' does not keep the values that it had" in failure(capsys, "in", "out", *DEEPSEEK)
    assert not Path("out").exists()


def test_the_plan_and_the_result_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    model({"l.weight": F8, "l.scale": POWERS.astype(E8M0)})
    assert main(["convert", "in", "out", *DEEPSEEK, "--dry-run"]) == 0
    assert "FLOAT8E4M3FN (lossless)" in capsys.readouterr().out
    assert main(["convert", "in", "out", *DEEPSEEK]) == 0
    assert "lossless: 1 tensor with every value kept and compared" in capsys.readouterr().out
