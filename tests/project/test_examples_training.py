# SPDX-License-Identifier: Apache-2.0
"""examples/train_digits.py in a short form, and examples/scaled_mm.py as far as it goes without PyTorch or a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpucast

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROBLEM = gpucast.gpu.devices.unavailable()


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def test_every_precision_learns_as_float32_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_digits = load("train_digits", monkeypatch)
    results: dict[str, Any] = {}
    run = train_digits.run
    monkeypatch.setattr(train_digits, "run", lambda *arguments: results.update(run(*arguments)) or results)
    plot = tmp_path / "curves.png"
    assert train_digits.main(["--epochs", "2", "--seeds", "1", "--device", "cpu", "--plot", str(plot)]) == 0
    out, err = capsys.readouterr()
    assert "float8, delayed scaling, seed 0: 100%" in err
    assert out.startswith("device 'cpu', 2 epochs, ")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert list(results) == list(train_digits.precisions(np, 0))
    wide = results["float32"][0]
    assert wide["accuracy"] > 0.88
    for name, (one,) in results.items():
        assert f"{name:30}{one['accuracy']:>10.2%}" in out
        assert abs(one["accuracy"] - wide["accuracy"]) <= 0.02, name
        assert len(one["loss"]) == 2
        np.testing.assert_allclose(one["loss"], wide["loss"], rtol=0.15, err_msg=name)
        # Other rounding, other losses: no precision is float32 by mistake.
        assert (one["loss"] == wide["loss"]) == (name == "float32")


def test_stochastic_rounding_is_the_better_one_without_master_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps far below half a unit of bfloat16: to nearest none of them is taken, at random the mean is right."""
    train_digits = load("train_digits", monkeypatch)
    precisions = train_digits.precisions(np, 3)
    for name, low, high in (("bfloat16 weights, nearest", 0, 0), ("bfloat16 weights, stochastic", 0.9, 1.1)):
        weights: Any = {"weight": [np.ones(20_000, np.float32)]}
        (weights,) = kept = precisions[name].keep((weights,))
        assert isinstance(kept, tuple)
        for _ in range(10):
            narrow = gpucast.cast(weights["weight"][0], "FLOAT")
            (weights,) = precisions[name].keep(({"weight": [narrow + np.float32(2**-12)]},))
        taken = gpucast.cast(weights["weight"][0], "DOUBLE").mean() - 1
        assert low <= taken / (10 * 2**-12) <= high


def test_scales_follow_the_largest_values(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = load("delayed_scale", monkeypatch).DelayedScale("FLOAT8E4M3FN", np, history=2)
    x = np.array([3.0, -7.0, 0.5], np.float32)
    assert scale.quantize(x).astype(np.float32).tolist() == [3.0, -7.0, 0.5]
    for seen, expected in (
        (None, 64),  # 7 * 64 = 448, the largest number of the type
        (x / 2, 64),  # the larger one of two steps
        (np.zeros(3, np.float32), 128),
        (np.zeros(3, np.float32), 128),  # only zeros
        (np.full(3, np.inf, np.float32), 128),
        (x, 128),  # the infinity is still in the history
        (x, 64),
        (np.full(3, 2.0**-149, np.float32), 64),
        (np.full(3, 2.0**-149, np.float32), 2.0**108),
    ):
        if seen is not None:
            scale.quantize(seen)
        scale.update()
        assert (float(scale.scale), float(scale.inverse)) == (expected, 1 / expected)


@pytest.mark.gpu
@pytest.mark.skipif(PROBLEM is not None, reason=f"the first test runs it on the host: {PROBLEM}")
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    train_digits = load("train_digits", monkeypatch)
    on_gpu, on_host = (train_digits.run(3, 1, xp) for xp in (cupy, np))
    for name, (one,) in on_gpu.items():
        np.testing.assert_allclose(one["loss"], on_host[name][0]["loss"], rtol=0.1, err_msg=name)


def test_what_is_fed_to_the_product_stands_for_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quantization of scaled_mm, and what the product of its codes and inverse scales comes to."""
    scaled_mm = load("scaled_mm", monkeypatch)
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 96), (96, 32)))
    scales = [scaled_mm.DelayedScale("FLOAT8E4M3FN", np) for _ in range(2)]
    for _ in range(2):
        (codes_x, narrow_x), (codes_w, narrow_w) = (
            scaled_mm.quantize(a, s) for a, s in zip((x, w), scales, strict=True)
        )
        for scale in scales:
            scale.update()
    assert codes_x.dtype == codes_w.dtype == gpucast.dtype("FLOAT8E4M3FN").numpy
    used = [float(s.scale) for s in scales]
    assert all(448 / 2 < scale * np.abs(a).max() <= 448 for scale, a in zip(used, (x, w), strict=True))
    product = codes_x.astype(np.float32) @ codes_w.astype(np.float32) / (used[0] * used[1])
    assert scaled_mm.difference(product, narrow_x @ narrow_w) < 1e-6
    assert 0.01 < scaled_mm.difference(product, x @ w) < 0.06


@pytest.mark.peers
def test_the_product_of_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU from sm_89 on, else on the host."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
        pytest.skip("this PyTorch has no float8 product on the host")
    assert load("scaled_mm", monkeypatch).main(["--steps", "2"]) == 0
    assert capsys.readouterr().out.endswith("gives the products of the quantized operands.\n")
