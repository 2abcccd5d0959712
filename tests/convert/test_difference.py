# SPDX-License-Identifier: Apache-2.0
"""`gpucast diff` compares checkpoints by value."""

from __future__ import annotations

import json
from math import hypot
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


@pytest.mark.parametrize("recipe", ["deepgemm", "te-nvfp4"])
def test_the_ratio_and_the_largest_difference(
    tmp_path: Path, plain: str, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = _diff(capsys, plain, _quantized(tmp_path / "q.safetensors", recipe))
    row, error = found["tensors"][0], float(_error(recipe))
    assert code == 1 and row["name"] == "a.weight"
    assert row["relative_error"] == pytest.approx(error, rel=1e-6)
    assert row["sqnr_db"] == pytest.approx(-20 * np.log10(error), rel=1e-6)
    gap = np.abs(X.astype(np.float64) - gpucast.quantize(X, recipe).dequantize("DOUBLE"))
    assert row["largest"] == gap.max() > 0
    save(str(tmp_path / "n.safetensors"), {"a.weight": np.where(np.eye(256) > 0, np.nan, X.astype(np.float32))})
    assert _diff(capsys, plain, str(tmp_path / "n.safetensors"))[1]["tensors"][0]["largest"] is None


@pytest.mark.parametrize(
    ("one", "other", "ulps", "error"),
    [
        (np.array([2**62, 2**53 + 1, 5]), np.array([2**62 + 1, 2**53, 5]), 1, 2**0.5 / hypot(2**62, 2**53)),
        (np.array([2**62 + 1, 1, 5]), np.array([2**62 + 1000, 2, 5]), 999, hypot(999, 1) / 2**62),
        (np.array([0, 1, 1], np.uint64), np.array([2**64 - 1, 2, 1], np.uint64), 2**64 - 1, 2**64 / 2**0.5),
        (np.array([2**63, 5, 0]), np.array([-(2**63), 6, 0]), None, 2.0),
        (np.array([2**53 + 1, -1, 3]), np.array([2**53, 7, 3], np.float64), None, 65**0.5 / 2**53),
        (np.float64([-4, 1, 2]), np.float64([4, 2, 2]), 2 * 0x4010000000000000, (65 / 21) ** 0.5),
        # The squares are beyond DOUBLE.
        (np.float64([1e300, 1, 2]), np.float64([-1e300, 2, 2]), 2 * int(np.float64(1e300).view(np.uint64)), None),
    ],
)
def test_wide_numbers(
    one: Any, other: Any, ulps: int | None, error: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, x in (("a", one), ("b", other)):
        save(str(tmp_path / f"{name}.safetensors"), {"w": x})
    code, found = _diff(capsys, str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"))
    row = found["tensors"][0]
    assert (code, row["values"]["differ"], row["values"]["ulps"]) == (1, 2, ulps)
    assert row["relative_error"] == (None if error is None else pytest.approx(error, rel=1e-9, abs=0))


def _error(recipe: str) -> Any:
    x, y = (part.astype(np.float64) for part in (X, gpucast.quantize(X, recipe).dequantize("DOUBLE")))
    return np.sqrt(np.square(x - y).sum() / np.square(x).sum())


def test_codes_and_scales_of_two_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (_quantized(tmp_path / f"{name}.safetensors", name) for name in ("deepgemm", "vllm-fp8-group"))
    code, found = _diff(capsys, one, other)
    row = found["tensors"][0]
    a, b = (gpucast.quantize(X, name) for name in ("deepgemm", "vllm-fp8-group"))
    assert code == 1 and row["codes"]["differ"] == np.count_nonzero(a.data.view(np.uint8) != b.data.view(np.uint8)) > 0
    assert row["codes"]["ulps"] == 1 and row["scales"] == {"of": 512, "differ": 0, "ulps": None}
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
    assert "a.weight  BFLOAT16  BFLOAT16  0.00%" in out and "SQNR dB" in out
    assert "1 of 1 tensors differ" in out and f"only in {plain}: 1 tensor, such as 'b.weight'" in out


def test_the_table_fits_100_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "model.language_model.layers.11.mlp.experts.127.down_proj.weight"
    q = gpucast.quantize(X, "deepgemm-128x128")
    for path, scales in (("a", q.scales), ("b", q.scales * 2)):
        save(
            str(tmp_path / f"{path}.safetensors"),
            {name: q.data, f"{name}_scale_inv": scales, f"{name[:-7]}.bias": X[0]},
        )
    assert main(["diff", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"), "--all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any("experts.127.down_proj.weight  FLOAT8E4M3FN  FLOAT8E4M3FN  " in line for line in lines)


def test_shapes_that_differ(tmp_path: Path, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    save(str(tmp_path / "c.safetensors"), {"a.weight": X[:3], "b.weight": X[:2]})
    code, found = _diff(capsys, plain, str(tmp_path / "c.safetensors"))
    assert code == 1 and found["tensors"][0]["problem"] == "shapes (256, 256) and (3, 256)"


def test_what_no_side_can_compare_is_said_once(tmp_path: Path, plain: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("a", {}), ("b", {"z": X[:1]})):
        save(str(tmp_path / f"{name}.npz"), {"w": X[:2], "text": np.array(["x"]), "s": np.array([name])} | more)
    save(str(tmp_path / "c.npz"), {"w": X[:2], "text": X[:1], "s": X[:2]})
    one, other, numbers = (str(tmp_path / f"{name}.npz") for name in "abc")
    assert main(["diff", one, other]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"only in {other}: 1 tensor, such as 'z'",
        *(f"not compared: tensor '{name}' of <U1 has no numbers to compare" for name in ("text", "s")),
        "0 of 1 tensors differ",
    ]
    # What is there, and holds numbers on one side alone, is not missing.
    assert main(["diff", one, numbers]) == 1
    assert "only in" not in capsys.readouterr().out
