# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ run in a short form, and what they say holds."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpucast

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROBLEM = gpucast.device.unavailable()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_the_demonstration(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="sklearn is not installed")
    monkeypatch.setattr(sys, "argv", ["digits.py", "--out", str(tmp_path)])
    load("digits").main()
    out, err = capsys.readouterr()
    assert err == "" and "4. 0 of 48,100 values differ from the reference" in out
    rows = re.findall(r"^  (\w+) +[\d,]+ +([\d.]+)% +([\d.]+)%$", out, re.MULTILINE)
    accuracy = {name: float(share) for name, share, _ in rows}
    # Scales bring back what a plain cast to as many bits loses.
    assert accuracy["INT4"] < 20 < accuracy["FLOAT"] - 5
    assert accuracy["mxfp4"] > accuracy["FLOAT4E2M1"] + 5 and accuracy["int4_32"] > accuracy["FLOAT"] - 3
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert page.count("<img ") == 2 and "http" not in page.replace("http-equiv", "")


def test_a_kernel_of_ones_own_compiles_without_a_gpu(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fused_cast: ModuleType = load("fused_cast")
    monkeypatch.setattr(gpucast.device, "unavailable", lambda: ("there is no NVIDIA driver", "install one"))
    assert fused_cast.main(["--arch", "sm_90"]) == 0
    assert capsys.readouterr().out.endswith(" bytes for sm_90\n")
    assert fused_cast.main(["--arch", "sm_9"]) == 1
    assert "'sm_9' is not an architecture that gpucast compiles for" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"tests/kernel runs the function on the host: {PROBLEM}")
def test_a_kernel_of_ones_own_on_a_gpu(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert load("fused_cast").main([]) == 0
    assert "16,777,216 elements, 0 differ" in capsys.readouterr().out


def test_every_precision_learns_as_float32_does(load: Any) -> None:
    train_digits = load("train_digits")
    results = train_digits.run(2, 1, np)
    assert list(results) == list(train_digits.precisions(np, 0))
    wide = results["float32"][0]
    assert wide["accuracy"] > 0.88
    for name, (one,) in results.items():
        # Four bits take longer to learn.
        assert abs(one["accuracy"] - wide["accuracy"]) <= (0.06 if "nvfp4" in name else 0.02), name
        # Other rounding, other losses: no precision is float32 by mistake.
        assert (one["loss"] == wide["loss"]) == (name == "float32")


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"the test above runs it on the host: {PROBLEM}")
def test_every_precision_learns_on_a_gpu(load: Any) -> None:
    import cupy

    on_gpu, on_host = (load("train_digits").run(3, 1, xp) for xp in (cupy, np))
    for name, (one,) in on_gpu.items():
        np.testing.assert_allclose(one["loss"], on_host[name][0]["loss"], rtol=0.1, err_msg=name)


@pytest.mark.peers
def test_a_transformer_learns_in_every_precision(load: Any) -> None:
    pytest.importorskip("torch")
    train_transformer = load("train_transformer")
    results = train_transformer.run(8, 1, "cpu")
    assert list(results) == list(train_transformer.PRECISIONS)
    wide = results["float32"][0]
    assert wide["loss"][-1] < wide["loss"][0] - 0.2
    for name, (one,) in results.items():
        assert abs(one["unseen"] - wide["unseen"]) < 0.1, name
        assert (one["loss"] == wide["loss"]) == (name == "float32")


@pytest.mark.peers
def test_the_product_of_torch(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU from sm_89 on, else on the host."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        pytest.skip("this PyTorch has no float8 product on the host")
    assert load("scaled_mm").main(["--steps", "2"]) == 0
    assert capsys.readouterr().out.endswith("gives the products of the quantized operands.\n")
