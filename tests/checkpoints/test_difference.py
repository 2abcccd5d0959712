# SPDX-License-Identifier: Apache-2.0
"""`gpucast diff` compares checkpoints by value, and finds the recipe of each side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.cli.main import main
from gpucast.files import save

X = gpucast.cast(np.random.default_rng(4).standard_normal((256, 256)).astype(np.float32), "BFLOAT16")


def _quantized(path: Path, recipe: str, x: Any = X) -> str:
    """A file in DeepSeek's style, or in ModelOpt's for NVFP4."""
    q = gpucast.quantize(x, recipe)
    tensors = {"a.weight": q.data, "a.weight_scale_inv": np.asarray(q.scales, np.float32)}
    if q.global_scale is not None:
        tensors = {
            "a.weight": q.data.data.reshape(256, -1),
            "a.weight_scale": q.scales,
            "a.weight_scale_2": q.global_scale,
        }
    save(str(path), tensors | {"b.weight": X[:2]})
    return str(path)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    save(str(tmp_path / "plain.safetensors"), {"a.weight": X, "b.weight": X[:2]})
    return str(tmp_path / "plain.safetensors")


def _diff(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["diff", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_equal_numbers(plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _diff(capsys, plain, plain)
    assert (code, found["differ"], len(found["tensors"])) == (0, 0, 2)


@pytest.mark.parametrize("recipe", ["deepgemm", "tilekernels", "vllm-fp8-group", "te-float8-block", "te-nvfp4"])
def test_the_recipe_is_found(tmp_path: Path, plain: str, recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _diff(capsys, plain, _quantized(tmp_path / "q.safetensors", recipe))
    row = found["tensors"][0]
    assert code == 1 and row["name"] == "a.weight" and row["recipes"]["a"] == []
    exact = [one["recipe"] for one in row["recipes"]["b"] if one["codes"] == one["scales"] == 0]
    assert recipe in exact
    assert row["relative_error"] == pytest.approx(float(_error(recipe)), rel=1e-6)


def _error(recipe: str) -> Any:
    x, y = (part.astype(np.float64) for part in (X, gpucast.quantize(X, recipe).dequantize("DOUBLE")))
    return np.sqrt(np.square(x - y).sum() / np.square(x).sum())


def test_codes_and_scales_of_two_stacks(tmp_path: Path, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (_quantized(tmp_path / f"{name}.safetensors", name) for name in ("deepgemm", "vllm-fp8-group"))
    code, found = _diff(capsys, one, other, "--original", plain)
    row = found["tensors"][0]
    a, b = (gpucast.quantize(X, name) for name in ("deepgemm", "vllm-fp8-group"))
    assert code == 1 and row["codes"]["differ"] == np.count_nonzero(a.data.view(np.uint8) != b.data.view(np.uint8)) > 0
    assert row["codes"]["ulps"] == 1 and row["scales"] == {"of": 512, "differ": 0, "ulps": None}
    assert [row["recipes"][which][0]["recipe"] for which in "ab"] == ["deepgemm", "vllm-fp8-group"]
    worst = row["worst"][0][0]
    errors = np.square(a.dequantize("DOUBLE") - b.dequantize("DOUBLE")).sum(1) / np.square(a.dequantize("DOUBLE")).sum(
        1
    )
    assert errors[worst] == errors.max()


def test_the_table(tmp_path: Path, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    changed = X.copy()
    changed[3, 4] = 100
    save(str(tmp_path / "c.safetensors"), {"a.weight": changed, "c.weight": X[:2], "d.weight_scale_inv": np.ones(2)})
    assert main(["diff", plain, str(tmp_path / "c.safetensors")]) == 1
    out = capsys.readouterr().out
    assert "a.weight  BFLOAT16  BFLOAT16  1 (0.00%)" in out and "3: " in out
    assert "1 of 1 tensors differ" in out and f"only in {plain}: 1 tensors, such as 'b.weight'" in out


def test_shapes_that_differ(tmp_path: Path, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(str(tmp_path / "c.safetensors"), {"a.weight": X[:3], "b.weight": X[:2]})
    code, found = _diff(capsys, plain, str(tmp_path / "c.safetensors"))
    assert code == 1 and found["tensors"][0]["problem"] == "shapes (256, 256) and (3, 256)"


def test_no_such_file(plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", plain, "nowhere.safetensors"]) == 1
    assert "nowhere.safetensors" in capsys.readouterr().err
