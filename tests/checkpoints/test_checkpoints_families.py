# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints of families that name codes and scales in ways of their own: read as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from gpucast import files
from gpucast.checkpoints.scales import dequantized
from scaled_files import convert, failure, header, numbers, quantized, save

pytestmark = pytest.mark.usefixtures("folder")

E8M0 = ml_dtypes.float8_e8m0fnu


def pairs(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of FLOAT4E2M1, two to a byte, the first in the low half."""
    raw = codes.view(np.uint8)
    return np.asarray(raw[..., 0::2] | raw[..., 1::2] << 4)


def values(codes: np.ndarray[Any, Any], scales: np.ndarray[Any, Any], *lengths: int) -> np.ndarray[Any, Any]:
    """Codes times scales, each for a block of the last dimensions."""
    wide = scales.astype(np.float64)
    for axis, length in zip(range(-len(lengths), 0), lengths, strict=True):
        wide = np.repeat(wide, length, axis)
    return codes.astype(np.float64) * wide[tuple(slice(n) for n in codes.shape)]


def powers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(100, 140, shape).astype(np.uint8).view(E8M0)


# ---- DeepSeek-V4 ----


def deepseek_v4() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a checkpoint as DeepSeek-V4-Flash has them, and their numbers."""
    dense = numbers(200, 300).astype(ml_dtypes.float8_e4m3fn)
    expert = gpucast.cast(numbers(64, 96), "FLOAT4E2M1")
    dense_scale, expert_scale = powers(2, 3), powers(64, 3)
    tensors = {
        "layers.0.attn.wq_a.weight": dense,
        "layers.0.attn.wq_a.scale": dense_scale,
        "layers.0.ffn.experts.0.w1.weight": pairs(expert).view(np.int8),
        "layers.0.ffn.experts.0.w1.scale": expert_scale,
        "layers.0.hc_attn_scale": np.ones(3, np.float32),
        "layers.0.ffn.gate.tid2eid": np.arange(8, dtype=np.int64).reshape(4, 2),
        "norm.weight": np.ones(8, ml_dtypes.bfloat16),
    }
    wanted = {
        "layers.0.attn.wq_a.weight": values(dense, dense_scale, 128, 128),
        "layers.0.ffn.experts.0.w1.weight": values(expert, expert_scale, 32),
    }
    return tensors, wanted


CONFIG = {
    "expert_dtype": "fp4",
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}


def test_deepseek_v4_is_read() -> None:
    tensors, wanted = deepseek_v4()
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text(json.dumps(CONFIG))
    assert convert("in", "out", "--to", "FLOAT", "--verify", "all") == 0
    found = files.load("out/model.safetensors")
    assert set(found) == {name for name in tensors if not name.endswith(".scale")}
    for name, numbers_wanted in wanted.items():
        np.testing.assert_array_equal(found[name], numbers_wanted.astype(np.float32))
    assert json.loads(Path("out/config.json").read_text()) == {"torch_dtype": "float32"}


def test_deepseek_v4_gets_other_scales() -> None:
    tensors, _ = deepseek_v4()
    tensors["layers.0.attn.wq_a.weight"] = numbers(256, 128).astype(ml_dtypes.float8_e4m3fn)
    tensors["layers.0.attn.wq_a.scale"] = powers(2, 1)
    del tensors["layers.0.ffn.experts.0.w1.weight"], tensors["layers.0.ffn.experts.0.w1.scale"]
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text(json.dumps(CONFIG))
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "deepseek"]
    assert convert("in", "out", *options, "--verify") == 0
    config = json.loads(Path("out/config.json").read_text())
    assert config["expert_dtype"] == "fp8"
    assert header("out/model.safetensors")["layers.0.attn.wq_a.weight_scale_inv"] == ("F32", [2, 1])


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (powers(3, 3), "has shape (200, 300)"),
        (powers(6), "has shape (200, 300)"),
        (np.ones((2, 3), np.float32), "'l.scale' beside it may be its scales"),
    ],
)
def test_a_scale_of_another_shape_or_type_is_refused(
    scale: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save("in/model.safetensors", {"l.weight": numbers(200, 300).astype(ml_dtypes.float8_e4m3fn), "l.scale": scale})
    assert words in failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert sorted(path.name for path in Path().iterdir()) == ["in"]


def test_a_norm_named_scale_is_no_scale() -> None:
    save("in/model.safetensors", {"l.scale": np.ones(4, np.float32), "l.weight": numbers(4, 4)})
    assert convert("in", "out", "--to", "BFLOAT16") == 0
    assert header("out/model.safetensors") == {"l.scale": ("BF16", [4]), "l.weight": ("BF16", [4, 4])}


# ---- ComfyUI's NVFP4 ----


def test_nvfp4_of_comfyui() -> None:
    x = numbers(144, 80)
    files.save("in.safetensors", {"m.l.weight": x, "m.odd.weight": numbers(15, 80), "m.l.bias": x[0]})
    options = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "comfyui", "--verify", "all"]
    assert convert("in.safetensors", "out.safetensors", *options) == 0
    found = header("out.safetensors")
    assert found["m.l.weight"] == ("U8", [144, 40])
    # Whole tiles of 128 rows of 4 scales.
    assert found["m.l.weight_scale"] == ("F8_E4M3", [256, 8])
    assert found["m.l.weight_scale_2"] == ("F32", [])
    assert found["m.odd.weight"] == ("F32", [15, 80])
    written, q = files.load("out.safetensors"), quantized(x, "FLOAT4E2M1", "nvfp4")
    assert json.loads(written["m.l.comfy_quant"].tobytes())["format"] == "nvfp4"
    raw = q.data.get().view(np.uint8)
    assert_same(written["m.l.weight"], raw[:, 0::2] << 4 | raw[:, 1::2])
    # NVIDIA, cuBLAS: "Scaling Factors Layout" of 1D blocks.
    for row, column in ((0, 0), (31, 3), (32, 0), (127, 4), (128, 0), (143, 4)):
        tile = row // 128 * 2 + column // 4
        place = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        assert written["m.l.weight_scale"].reshape(-1)[place] == q.scales[row, column]
    assert convert("out.safetensors", "back.safetensors", "--to", "FLOAT") == 0
    assert_same(files.load("back.safetensors")["m.l.weight"], q.dequantize())


@pytest.mark.parametrize("wrong", ["weight_scale", "weight_scale_2", "shape"])
def test_nvfp4_of_comfyui_whose_parts_do_not_fit(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"l.weight": numbers(16, 64)})
    options = ["--to", "FLOAT4E2M1", "--scale", "nvfp4", "--style", "comfyui"]
    assert convert("in.safetensors", "q.safetensors", *options) == 0
    tensors = files.load("q.safetensors")
    if wrong == "shape":
        tensors["l.weight_scale"] = tensors["l.weight_scale"][:16]
    else:
        del tensors[f"l.{wrong}"]
    files.save("q.safetensors", tensors)
    assert "l.weight" in failure(capsys, "q.safetensors", "out.safetensors", "--to", "FLOAT")
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scales_that_are_no_numbers_are_refused(wrong: float, capsys: pytest.CaptureFixture[str]) -> None:
    weight, scales = numbers(256, 256).astype(ml_dtypes.float8_e4m3fn), np.ones((2, 2), np.float32)
    scales[1, 0] = wrong
    save("in/1.safetensors", {"l.weight": weight, "m.weight": numbers(4, 4)})
    save("in/2.safetensors", {"l.weight_scale_inv": scales})
    message = failure(capsys, "in", "out", "--to", "BFLOAT16", "--dry-run")
    assert "in/2.safetensors: 1 of the 4 scales 'l.weight_scale_inv' are infinite or NaN" in message
    assert convert("in", "out", "--to", "BFLOAT16", "--exclude", "l.weight") == 0


# ---- gpt-oss ----


def gpt_oss(experts: int, rows: int, columns: int) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    codes = gpucast.cast(numbers(experts, rows, columns), "FLOAT4E2M1")
    scales = powers(experts, rows, columns // 32)
    tensors = {
        "l.experts.w_blocks": pairs(codes).reshape(experts, rows, columns // 32, 16),
        "l.experts.w_scales": scales.view(np.uint8),
        "l.experts.w_bias": np.ones((experts, rows), ml_dtypes.bfloat16),
    }
    return tensors, values(codes, scales, 32).transpose(0, 2, 1)


@pytest.mark.parametrize("piece", [1 << 20, 7 * 32, 1])
def test_gpt_oss_is_read_as_the_model_has_it(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dequantized, "_PIECE", piece)
    tensors, wanted = gpt_oss(3, 7, 96)
    save("in/model.safetensors", tensors)
    Path("in/config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}')
    assert convert("in", "out", "--to", "FLOAT", "--verify", "all") == 0
    found = files.load("out/model.safetensors")
    assert sorted(found) == ["l.experts.w", "l.experts.w_bias"]
    assert_same(found["l.experts.w"], wanted.astype(np.float32))
    assert json.loads(Path("out/config.json").read_text()) == {"dtype": "float32"}


def test_gpt_oss_gets_other_scales_in_the_order_of_the_model() -> None:
    tensors, wanted = gpt_oss(2, 64, 32)
    save("in/model.safetensors", tensors)
    options = ["--to", "FLOAT4E2M1", "--scale", "mx", "--verify"]
    assert convert("in/model.safetensors", "out.safetensors", *options) == 0
    assert convert("out.safetensors", "back.safetensors", "--to", "DOUBLE") == 0
    back = quantized(wanted, "FLOAT4E2M1", "mx").dequantize("DOUBLE")
    assert_same(files.load("back.safetensors")["l.experts.w"], back)


@pytest.mark.parametrize("wrong", ["scales", "blocks", "type", "no scales", "no blocks"])
def test_halves_that_do_not_fit_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensors, _ = gpt_oss(2, 4, 64)
    scales = tensors["l.experts.w_scales"]
    if wrong == "scales":
        tensors["l.experts.w_scales"] = scales[:, :, :1]
    elif wrong == "blocks":
        tensors["l.experts.w_blocks"] = tensors["l.experts.w_blocks"][..., :8]
    elif wrong == "type":
        tensors["l.experts.w_scales"] = scales.astype(np.float32)
    else:
        del tensors[f"l.experts.w_{wrong[3:]}"]
    save("in/model.safetensors", tensors)
    message = failure(capsys, "in", "out", "--to", "BFLOAT16")
    assert ("w_blocks" if wrong == "no scales" else "w_scales") in message
    assert sorted(path.name for path in Path().iterdir()) == ["in"]
