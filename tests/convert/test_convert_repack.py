# SPDX-License-Identifier: Apache-2.0
"""Codes with scales that go to another layout: with every value kept, or refused where `--repack` asks for that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from conversions import convert, failure, model, numbers, quantized
from gpucast import files
from gpucast.cli import main
from gpucast.convert.scales import repack
from gpucast.convert.streaming import pieces

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


@pytest.mark.parametrize("factor", [1, 1.5])
def test_scales_of_blocks_as_mx(factor: float) -> None:
    """Powers of two keep all values."""
    scales = POWERS * np.float32(factor)
    written = checked({"l.weight": F8, "l.weight_scale_inv": scales}, *MX, lossless=factor == 1)
    if factor == 1:
        assert_same(written["l.weight"], F8)
        wide = np.repeat(np.repeat(POWERS, 128, 0), 4, 1)
        assert_same(written["l.weight_scale"].view(E8M0), wide.astype(E8M0))


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
    parts = repack.Repacked._found

    def wrong(self: Any, *given: Any) -> Any:
        found = parts(self, *given)
        found.scales[1, 2] *= 2
        return found

    monkeypatch.setattr(repack.Repacked, "_found", wrong)
    assert "tensor 'l.weight' does not keep the values that it had" in failure(capsys, "in", "out", *DEEPSEEK)
    assert not Path("out").exists()


def test_the_plan_and_the_result_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    model({"l.weight": F8, "l.scale": POWERS.astype(E8M0)})
    assert main(["convert", "in", "out", *DEEPSEEK, "--dry-run"]) == 0
    assert "FLOAT8E4M3FN (lossless)" in capsys.readouterr().out
    assert main(["convert", "in", "out", *DEEPSEEK]) == 0
    assert "lossless: 1 tensor with every value kept and compared" in capsys.readouterr().out


# ---- --repack ----

X = gpucast.cast(np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32), "BFLOAT16")
NVFP4 = "--to FLOAT4E2M1 --scale nvfp4 --style"


def mx(x: Any = X) -> None:
    """The folder `mx`: MXFP4 weights, of which two share a global scale as NVFP4, and one without scales."""
    model({"m.q_proj.weight": x, "m.k_proj.weight": X[:64] * 2, "n.weight": X[:32]}, model_type="llama")
    how = "--to FLOAT4E2M1 --scale mx --style compressed-tensors --exclude n.weight --allow-loss"
    assert convert("in", "mx", *how.split()) == 0


@pytest.mark.parametrize(
    "how",
    [
        f"{NVFP4} compressed-tensors",
        f"{NVFP4} comfyui",
        "--to FLOAT8E4M3FN --scale per-channel --style gpucast",
        "--to FLOAT8E4M3FN --scale mx --style gpucast",
    ],
)
def test_numbers_are_kept(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    mx()
    assert main(["convert", "mx", "new", *how.split(), "--repack", "--verify", "all"]) == 0
    out = capsys.readouterr().out
    assert "lossless: 2 tensors with every value kept and compared" in out and "left alone: 'n.weight'" in out
    assert main(["diff", "mx", "new"]) == 0
    if "compressed-tensors" in how:
        # One global scale for what is joined.
        written = files.load("new/model.safetensors")
        assert written["m.q_proj.weight_global_scale"] == written["m.k_proj.weight_global_scale"]


@pytest.mark.parametrize("scale", ["per-channel", "per-tensor", "mx"])
def test_pieces_are_those_of_the_whole(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mx()
    written = []
    for size in (pieces._PIECE, 1 << 11):
        monkeypatch.setattr(pieces, "_PIECE", size)
        how = f"--to FLOAT8E4M3FN --scale {scale} --style gpucast --repack"
        assert convert("mx", f"new{size}", *how.split()) == 0
        written.append(Path(f"new{size}/model.safetensors").read_bytes())
    assert written[0] == written[1]


def test_refused_with_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    x = X.copy()
    x[0, :32] *= 2.0**-40
    mx(x)
    count = np.count_nonzero(gpucast.quantize(x, "mxfp4_even").dequantize()[0, :32])
    changed = f"repack: {count} of 32,768 numbers would change from FLOAT4E2M1, one FLOAT8E8M0 scale for 32"
    message = failure(capsys, "mx", "new", *f"{NVFP4} comfyui --repack".split())
    assert f"tensor 'm.q_proj.weight': {changed}" in message
    assert not Path("new").exists()


def test_a_stored_reciprocal_changes_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """compressed-tensors stores 1/g as a FLOAT, which gives g again for powers of two alone."""
    # The global scale is that of the largest number, 6 times 448 times g.
    power = np.where(X.astype(np.float32) < 0, np.float32(-1.5), np.float32(6 * 448 / 4))
    repacked = ["nv", "new", *f"{NVFP4} compressed-tensors --repack".split()]
    for x in (X, gpucast.cast(power, "BFLOAT16")):
        # Of a weight that loaders do not join with others.
        model({"m.o_proj.weight": x}, model_type="llama")
        shutil.rmtree("nv", ignore_errors=True)
        assert convert("in", "nv", *f"{NVFP4} gpucast --allow-loss".split()) == 0
        if x is X:
            assert "of 32,768 numbers would change from" in failure(capsys, *repacked)
            assert not Path("new").exists()
    assert convert(*repacked) == 0
    assert main(["diff", "nv", "new"]) == 0
    assert files.load("new/model.safetensors")["m.o_proj.weight_global_scale"] == 4


def test_a_stored_reciprocal_stays_as_it_is() -> None:
    """To the style that it has: no number changes, whatever the global scale is."""
    model({"m.q_proj.weight": X, "m.k_proj.weight": X[:64] * 2}, model_type="llama")
    how = f"{NVFP4} compressed-tensors".split()
    assert convert("in", "nv", *how, "--allow-loss") == 0
    assert convert("nv", "new", *how, "--repack", "--verify", "all") == 0
    old, new = (files.load(f"{name}/model.safetensors") for name in ("nv", "new"))
    assert old.keys() == new.keys()
    for name, part in old.items():
        assert_same(new[name], part)
    assert np.log2(old["m.q_proj.weight_global_scale"]) % 1 != 0
