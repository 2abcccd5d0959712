# SPDX-License-Identifier: Apache-2.0
"""Tensors with scales: written in every format and style, and read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import conversions
import gpucast
from codes import assert_same
from conversions import NAMES, convert, failure, header, model, numbers, quantized, save
from gpucast import convert as conversion
from gpucast import files
from gpucast.arrays.packed import PackedArray
from gpucast.cli import main
from gpucast.convert.scales import scaling
from gpucast.convert.scales.stored import Stored
from gpucast.core.dtypes import dtype
from tensors import leftovers

pytestmark = pytest.mark.usefixtures("several_pieces")

TYPES = [
    *("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1"),
    *("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"),
]
PAIRS = [(to, scale, None) for to in TYPES for scale in scaling.formats(dtype(to))]
PAIRS += [
    (to, scale, 2**64 - 5)
    for to, among in (("FLOAT8E4M3FN", None), ("FLOAT6E3M2", None), ("FLOAT4E2M1", ["nvfp4"]))
    for scale in among or scaling.formats(dtype(to))
]


# ---- formats ----


@pytest.mark.parametrize(("to", "scale", "seed"), PAIRS)
def test_written_and_read_back(to: str, scale: str, seed: int | None) -> None:
    def quantized(x: Any, name: str) -> gpucast.Quantized:
        """As the whole tensor would be, also where it rounds at random."""
        random = {} if seed is None else {"rounding": "stochastic", "seed": conversion.tensor_seed(seed, name)}
        return conversions.quantized(x, to, scale, **random)

    row = dtype(to)
    # Ragged blocks; rows of an odd number of elements; three dimensions; a narrow type; a row longer than a piece.
    tensors = {
        "a.weight": numbers(67, 129),
        "experts": numbers(2, 130, 40, seed=1),
        "half": numbers(20, 96, seed=2).astype(ml_dtypes.bfloat16),
        "long": numbers(3, 6144, seed=3).astype(np.float64),
    }
    kept = {"bias": np.ones(7, np.float32), "ids": np.arange(6).reshape(2, 3), "none": np.ones((0, 4), np.float16)}
    files.save("in.safetensors", {**tensors, **kept}, {"format": "pt"})
    # For several kinds of blocks the pieces are also compared with the reference, which is slow.
    verify = ["--verify"] if (to, scale) in (("FLOAT8E4M3FN", "block"), ("UINT4", "per-tensor")) else []
    options = ["--to", to, "--scale", scale, *verify]
    if seed is not None:
        options += ["--rounding", "stochastic", "--seed", str(seed), "--verify", "all"]
    assert convert("in.safetensors", "out.safetensors", *options) == 0
    found, stored = files.load("out.safetensors"), header("out.safetensors")
    for name, x in tensors.items():
        q = quantized(x, name)
        assert_same(found[name], q.data.get() if isinstance(q.data, PackedArray) else q.data)
        assert_same(found[f"{name}.scales"], q.scales)
        if q.zero_points is not None:
            assert_same(found[f"{name}.zero_points"], q.zero_points)
        if q.global_scale is not None:
            assert_same(found[f"{name}.global_scale"], q.global_scale)
        nbytes = row.nbytes(x.size)
        # The package counts elements of F4 by pairs, and has no names for INT4, INT2 and the like.
        if not row.packed:
            assert stored[name] == (row.safetensors, list(x.shape))
        elif row.safetensors is None:
            assert stored[name] == ("U8", [nbytes])
        assert stored[f"{name}.scales"] == (q.format.scale.safetensors, list(q.scales.shape))
    for name, x in kept.items():
        assert_same(found[name], x)
    # And back, to exactly the values of the codes.
    for wide in ("FLOAT", "BFLOAT16"):
        assert convert("out.safetensors", "back.safetensors", "--to", wide) == 0
        back = files.load("back.safetensors")
        assert back.keys() == tensors.keys() | kept.keys()
        for name, x in tensors.items():
            assert_same(back[name], gpucast.dequantize(quantized(x, name), wide))
    with files.TensorFile("back.safetensors") as file:
        assert file.metadata == {"format": "pt"}
    assert leftovers(Path(), "in.safetensors", "out.safetensors", "back.safetensors") == []


@pytest.mark.parametrize(("to", "scale"), [("INT8", "per-tensor"), ("UINT4", "per-tensor"), ("FLOAT4E2M1", "nvfp4")])
def test_nan_and_infinity(to: str, scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = numbers(40, 512)
    x[39, 511], x[0, 3] = np.nan, -np.inf
    files.save("in.safetensors", {"w": x})
    if scale == "per-tensor":
        message = failure(capsys, "in.safetensors", "out.safetensors", "--to", to, "--scale", scale)
        assert "would lose" in message
        assert "20,479 became NaN" in message
    options = ["--to", to, "--scale", scale, "--verify", "all", "--allow-loss"]
    capsys.readouterr()
    assert main(["convert", "in.safetensors", "out.safetensors", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["total"]
    assert convert("out.safetensors", "back.safetensors", "--to", "FLOAT", "--allow-loss") == 0
    # Results, whatever the sources were: a whole block for a NaN.
    back = files.load("back.safetensors")["w"]
    assert (told["results_nan"], told["results_infinite"]) == (np.isnan(back).sum(), np.isinf(back).sum())
    assert_same(files.load("back.safetensors")["w"], gpucast.dequantize(quantized(x, to, scale)))


def test_kept_in_part_of_a_quantized_file_and_scaled_anew() -> None:
    files.save("in.safetensors", {"a.weight": numbers(8, 64), "b.weight": numbers(8, 32, seed=1)})
    assert convert("in.safetensors", "q.safetensors", "--to", "INT4", "--scale", "block") == 0
    assert convert("q.safetensors", "out.safetensors", "--to", "FLOAT16", "--exclude", "a.*") == 0
    before, after = files.load("q.safetensors"), files.load("out.safetensors")
    assert after.keys() == {"a.weight", "a.weight.scales", "b.weight"}
    assert_same(after["a.weight"], before["a.weight"])
    assert_same(after["a.weight.scales"], before["a.weight.scales"])
    # Kept tensors still have their metadata.
    assert convert("out.safetensors", "wide.safetensors", "--to", "DOUBLE") == 0
    assert files.load("wide.safetensors").keys() == {"a.weight", "b.weight"}
    # To other codes by way of the numbers, but never without --scale.
    assert convert("q.safetensors", "again.safetensors", "--to", "FLOAT8E4M3FN", "--scale", "mx", "--verify") == 0
    wide = gpucast.dequantize(quantized(numbers(8, 64), "INT4", "block"), "DOUBLE")
    assert_same(files.load("again.safetensors")["a.weight"], quantized(wide, "FLOAT8E4M3FN", "mx").data)


def test_report_and_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    x = numbers(64, 128)
    files.save("in.safetensors", {"w": x, "bias": np.ones(3, np.float32)})
    options = ["in.safetensors", "out.safetensors", "--to", "INT4", "--scale", "block"]
    assert main(["convert", *options, "--dry-run"]) == 0
    table = capsys.readouterr().out
    assert "kept (1)" in table
    assert table.endswith("\n(1) fewer than 2 dimensions\n")
    assert main(["convert", *options, "--dry-run", "--json"]) == 0
    planned = {tensor["name"]: tensor for tensor in json.loads(capsys.readouterr().out)["tensors"]}
    assert planned["w"]["bytes_out"] == x.size // 2 + 64 * 4
    assert planned["bias"]["to"] is None
    assert planned["bias"]["why"] == "fewer than 2 dimensions"
    assert convert(*options, "--report", "report.json") == 0
    report = json.loads(Path("report.json").read_text())
    (result,) = report["tensors"]
    q = quantized(x, "INT4", "block")
    back = q.dequantize("DOUBLE")
    signal, noise = float(np.sum(x.astype(np.float64) ** 2)), float(np.sum((back - x) ** 2))
    assert result["sqnr_db"] == pytest.approx(10 * math.log10(signal / noise))
    assert result["bytes_out"] == planned["w"]["bytes_out"]
    assert (result["underflowed"], result["saturated"], result["elements"]) == (np.sum(back == 0), 0, x.size)
    assert result["max_relative_error"] == pytest.approx(float(np.max(np.abs(back - x) / np.abs(x))))
    assert report["options"]["scale"] == "block"
    assert report["options"]["style"] == "gpucast"
    # The largest of a block of OCP MX clamps where it is above the largest code by more than half a step.
    files.save("mx.safetensors", {"w": np.tile(np.array([463, 465, -500, 448], np.float32), (2, 8))})
    assert (
        convert("mx.safetensors", "o.safetensors", "--to", "FLOAT8E4M3FN", "--scale", "mx", "--report", "r.json") == 0
    )
    assert json.loads(Path("r.json").read_text())["tensors"][0]["saturated"] == 32


def test_verify_notices_other_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    files.save("in.safetensors", {"w": numbers(64, 128)})
    pack = Stored.pack
    monkeypatch.setattr(Stored, "pack", lambda self, codes: pack(self, codes).view(np.uint8) ^ 1)
    options = ["in.safetensors", "out.safetensors", "--to", "INT8", "--scale", "block"]
    message = failure(capsys, *options, "--verify")
    assert "tensor 'w' differs from the reference" in message
    assert leftovers(Path(), "in.safetensors") == []


# ---- styles ----


def styled(style: str, to: str, scale: str, rows: int, **config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert a model of one file; returns types and shapes, and its config.json. Checks that it reads back."""
    weight = NAMES["l.weight"][:rows]
    save("in/model.safetensors", {**NAMES, "l.weight": weight})
    Path("in/config.json").write_text(json.dumps({"model_type": "llama", **config}))
    rule = ["--scale-rule", "floor" if scale == "mx" else "amax"] if scale == "mx" or to.startswith("INT") else []
    assert convert("in", "out", "--to", to, "--scale", scale, "--style", style, *rule, "--verify") == 0
    assert convert("out", "back", "--to", "FLOAT", "--verify") == 0
    back, wanted = files.load("back/model.safetensors"), quantized(weight, to, scale).dequantize()
    if (style, scale) == ("compressed-tensors", "nvfp4"):
        # The reciprocal of the global scale is rounded.
        np.testing.assert_allclose(back["l.weight"], wanted, rtol=2**-23)
    else:
        assert_same(back["l.weight"], wanted)
    assert back.keys() == NAMES.keys()
    # A model without scales must not say that it has them.
    assert json.loads(Path("back/config.json").read_text()) == {"model_type": "llama"}
    written = json.loads(Path("out/config.json").read_text())
    assert written.pop("model_type") == "llama"
    found = header("out/model.safetensors")
    assert found.pop("l.bias") == ("F32", [264])
    assert found.pop("model.embed_tokens.weight") == ("F32", [10, 256])
    return found, written


def test_deepseek() -> None:
    # README_WEIGHTS.md of DeepSeek-V3: names, types, shapes and the entry of config.json.
    found, written = styled("deepseek", "FLOAT8E4M3FN", "block", 256, quantization_config={"quant_method": "fp8"})
    assert found == {"l.weight": ("F8_E4M3", [256, 256]), "l.weight_scale_inv": ("F32", [2, 2])}
    assert written == {
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["model.embed_tokens", "lm_head"],
        }
    }
    # (128x128 weight block) * weight_scale_inv.
    loaded = files.load("out/model.safetensors")
    scales = np.repeat(np.repeat(loaded["l.weight_scale_inv"], 128, 0), 128, 1)
    back = loaded["l.weight"].astype(np.float32) * scales
    assert np.abs(back - NAMES["l.weight"][:256]).max() < 0.05 * np.abs(NAMES["l.weight"]).max()


def weights(bits: int, strategy: str, kind: str = "float", symmetric: bool = True, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": False, "strategy": strategy} | more


def words(columns: int, *scale: int, **zeros: Any) -> dict[str, Any]:
    """Codes in words of 32 bits."""
    return {"packed": ("I32", [264, columns]), "shape": ("I64", [2]), "scale": ("F32", [264, *scale]), **zeros}


TOKEN = weights(8, "token") | {"dynamic": True}
MX = {"group_size": 32, "scale_dtype": "torch.uint8"}
NVFP4 = {"group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
F8, MX_SCALE = ("F8_E4M3", [264, 256]), ("U8", [264, 8])


# Of vllm-project/compressed-tensors: compressors/*/base.py (names, types), quantization/quant_args.py and
# quant_scheme.py (the presets FP8_DYNAMIC, FP8_BLOCK, NVFP4A16, MXFP4A16, W4A16). Version 0.20.0 of that package was
# seen to decompress these files to the values that gpucast gives.
@pytest.mark.parametrize(
    ("to", "scale", "tensors", "format", "weights", "activations"),
    [
        ("FLOAT8E4M3FN", "per-tensor", {"": F8, "scale": ("F32", [1])}, "float-quantized", weights(8, "tensor"), TOKEN),
        (
            *("FLOAT8E4M3FN", "per-channel", {"": F8, "scale": ("F32", [264, 1])}),
            *("float-quantized", weights(8, "channel"), TOKEN),
        ),
        (
            *("FLOAT8E4M3FN", "block", {"": ("F8_E4M3", [256, 256]), "scale": ("F32", [2, 2])}, "float-quantized"),
            weights(8, "block", block_structure=[128, 128]),
            TOKEN | {"strategy": "group", "group_size": 128},
        ),
        ("FLOAT8E4M3FN", "mx", {"": F8, "scale": MX_SCALE}, "mxfp8-quantized", weights(8, "group", **MX), None),
        (
            *("FLOAT4E2M1", "mx", {"packed": ("U8", [264, 128]), "scale": MX_SCALE}),
            *("mxfp4-pack-quantized", weights(4, "group", **MX), None),
        ),
        (
            *("FLOAT6E2M3", "mx", {"packed": ("U8", [264, 192]), "scale": MX_SCALE}),
            *("mxfp6-pack-quantized", weights(6, "group", **MX), None),
        ),
        (
            *("FLOAT4E2M1", "nvfp4"),
            {"packed": ("U8", [264, 128]), "scale": ("F8_E4M3", [264, 16]), "global_scale": ("F32", [1])},
            *("nvfp4-pack-quantized", weights(4, "tensor_group", **NVFP4), None),
        ),
        ("INT4", "block", words(32, 2), "pack-quantized", weights(4, "group", "int", group_size=128), None),
        (
            *("UINT4", "per-channel", words(32, 1, zero_point=("I32", [33, 1]))),
            *("pack-quantized", weights(4, "channel", "int", False), None),
        ),
        (
            *("UINT8", "block", words(64, 2, zero_point=("I32", [66, 2]))),
            *("pack-quantized", weights(8, "group", "int", False, group_size=128), None),
        ),
    ],
)
def test_compressed_tensors(
    to: str, scale: str, tensors: Any, format: str, weights: dict[str, Any], activations: Any
) -> None:
    rows = next(shape[0] for _, shape in tensors.values())
    found, written = styled("compressed-tensors", to, scale, rows)
    assert found == {f"l.weight_{name}".removesuffix("_"): held for name, held in tensors.items()}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
        "format": format,
    }
    assert written == {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["model.embed_tokens", "re:.*lm_head"],
        }
    }


def test_codes_of_compressed_tensors() -> None:
    # pack_quantized: element i at bit 4 i of the INT32, as code + 8; nvfp4: the first of two codes in the low half, and
    # weight_global_scale divides.
    x = np.zeros((4, 128), np.float32)
    x[0, :4] = 7, -7, 1, 0
    model({"l.weight": x})
    options = ["--style", "compressed-tensors"]
    assert convert("in", "i4", "--to", "INT4", "--scale", "per-channel", "--scale-rule", "amax", *options) == 0
    found = files.load("i4/model.safetensors")
    assert hex(found["l.weight_packed"].view(np.uint32)[0, 0]) == "0x8888891f"
    assert found["l.weight_shape"].tolist() == [4, 128]
    assert found["l.weight_scale"][0, 0] == 1
    x[0, :3] = 6, -3, 0.5
    save("in/model.safetensors", {"l.weight": x})
    assert convert("in", "f4", "--to", "FLOAT4E2M1", "--scale", "nvfp4", *options) == 0
    found = files.load("f4/model.safetensors")
    assert found["l.weight_packed"][0, :2].tolist() == [0x7 | 0xD << 4, 0x1]
    assert found["l.weight_scale"][0, 0].astype(np.float32) == 448
    assert found["l.weight_global_scale"].tolist() == [pytest.approx(448, rel=2**-22)]


def test_comfyui() -> None:
    # ComfyUI, comfy/ops.py _load_quantized_module. comfy-kitchen 0.2.40 was seen to give gpucast's numbers.
    tensors = {"l.weight": numbers(6, 8), "l.bias": np.ones(6, np.float32), "conv.weight": numbers(4, 4, 3, 3)}
    files.save("in.safetensors", tensors)
    options = ["--to", "FLOAT8E4M3FN", "--scale", "per-tensor", "--style", "comfyui", "--verify"]
    assert convert("in.safetensors", "out.safetensors", *options) == 0
    assert header("out.safetensors") == {
        "l.weight": ("F8_E4M3", [6, 8]),
        "l.weight_scale": ("F32", []),
        "l.comfy_quant": ("U8", [63]),
        "l.bias": ("F32", [6]),
        "conv.weight": ("F32", [4, 4, 3, 3]),
    }
    said = json.loads(files.load("out.safetensors")["l.comfy_quant"].tobytes())
    assert said == {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
    assert convert("out.safetensors", "back.safetensors", "--to", "FLOAT") == 0
    back = files.load("back.safetensors")
    assert back.keys() == tensors.keys()
    assert_same(back["l.weight"], quantized(tensors["l.weight"], "FLOAT8E4M3FN", "per-tensor").dequantize())
    # Each layer has its own description.
    files.save("in.safetensors", {"model.a.weight": numbers(6, 8), "clip.b.weight": numbers(6, 8)})
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT8E5M2", *options[2:]) == 0
    said = json.loads(files.load("out.safetensors")["clip.b.comfy_quant"].tobytes())
    assert said["format"] == "float8_e5m2"
    assert convert("out.safetensors", "x.safetensors", "--to", "FLOAT", "--exclude", "*.b.weight") == 0
    assert header("x.safetensors").keys() == {"model.a.weight"} | {
        f"clip.b.{part}" for part in ("weight", "weight_scale", "comfy_quant")
    }


def test_what_is_asked_for_by_name_is_quantized(capsys: pytest.CaptureFixture[str]) -> None:
    """An embedding; not a row that is no multiple of the block."""
    model({**NAMES, "l.weight": NAMES["l.weight"][:256]})
    save("in/other.safetensors", {"m.weight": numbers(4, 40)})
    options = ["--to", "FLOAT8E4M3FN", "--scale", "mx", "--include", "*.weight", "--style", "compressed-tensors"]
    assert convert("in", "out", *options) == 0
    assert "model.embed_tokens.weight_scale" in header("out/model.safetensors")
    assert header("out/other.safetensors") == {"m.weight": ("F32", [4, 40])}
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["m", "re:.*lm_head"]


def test_embeddings_are_kept_whatever_their_names() -> None:
    """Loaders look for no scales of theirs: transformers would fill them with random numbers."""
    names = ["transformer.wte", "transformer.wpe", "block.0.relative_attention_bias", "a.pos_emb", "a.mask_token"]
    model({f"{name}.weight": numbers(128, 128) for name in ["l", *names]}, model_type="t5")
    options = ["--to", "INT8", "--scale", "per-channel", "--style", "compressed-tensors"]
    assert convert("in", "out", *options) == 0
    found = header("out/model.safetensors")
    assert "l.weight_packed" in found and all(found[f"{name}.weight"][0] == "F32" for name in names)
