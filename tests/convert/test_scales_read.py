# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that have scales, as all kinds of producers write them: read as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpucast
from codes import assert_same
from conversions import NAMES, checkpoint, convert, failure, header, numbers, quantized, save
from gpucast import files
from gpucast.arrays.bitpacking import pack_codes
from gpucast.cli import main
from gpucast.convert.scales import dequantized
from gpucast.files import named_arrays

pytestmark = pytest.mark.usefixtures("several_pieces")

Held = dict[str, Any]
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


F8, I8 = numbers(6, 8).astype(E4M3), np.arange(-24, 24, dtype=np.int8).reshape(6, 8)
ROWS = np.arange(1, 7, dtype=np.float32)[:, None]


def values(codes: Any, scales: Any, *lengths: int) -> Any:
    """Codes times scales, each for a block of the last dimensions."""
    wide = np.asarray(scales).astype(np.float64)
    for axis, length in zip(range(-len(lengths), 0), lengths, strict=True):
        wide = np.repeat(wide, length, axis)
    return (codes.astype(np.float64) * wide[tuple(slice(n) for n in codes.shape)]).astype(np.float32)


def powers(*shape: int) -> Any:
    return np.random.default_rng(7).integers(100, 140, shape).astype(np.uint8).view(E8M0)


def pairs(codes: Any) -> Any:
    """Codes of FLOAT4E2M1, two to a byte, the first in the low half."""
    raw = codes.view(np.uint8)
    return raw[..., 0::2] | raw[..., 1::2] << 4


def said(**format: Any) -> Any:
    return np.frombuffer(json.dumps(format).encode(), np.uint8)


def one(scale: Any, factor: Any) -> tuple[Held, Held]:
    """A weight with a scale, and one of its activations, which goes with the codes."""
    held = {"l.weight": F8, "l.weight_scale": np.asarray(scale), "l.input_scale": np.float32(2)}
    return held, {"l.weight": F8.astype(np.float32) * np.asarray(factor, np.float32)}


def blocks(shape: tuple[int, int], *block: int) -> tuple[Held, Held]:
    codes = numbers(*shape).astype(E4M3)
    scales = numbers(*(-(-n // length) for n, length in zip(shape, block, strict=True)), seed=1)
    held = {"l.weight": codes, "l.weight_scale_inv": scales}
    return held, {"l.weight": values(codes, scales, *block)}


def int_quantized() -> tuple[Held, Held]:
    zero = np.arange(6, dtype=np.int8)[:, None]
    held = {"l.weight": I8, "l.weight_scale": ROWS, "l.weight_zero_point": zero}
    return held, {"l.weight": (I8.astype(np.float32) - zero) * ROWS}


def modelopt_nvfp4() -> tuple[Held, Held]:
    """Its second scale multiplies."""
    four = np.arange(64, dtype=np.uint8).reshape(2, 32) % 16
    block = np.array([[1, 2], [0.5, 4]], E4M3)
    held = {"l.weight": pack_codes(four.reshape(-1), 4).reshape(2, 16), "l.weight_scale": block}
    wanted = values(four.view(ml_dtypes.float4_e2m1fn), block, 16) * np.float32(0.25)
    return held | {"l.weight_scale_2": np.float32(0.25)}, {"l.weight": wanted}


def experts() -> tuple[Held, Held]:
    codes, scales = numbers(2, 130, 128).astype(E4M3), np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1)
    return {"e": codes, "e_scale_inv": scales}, {"e": values(codes, scales, 128, 128)}


def deepseek_v4() -> tuple[Held, Held]:
    dense, dense_scale = numbers(200, 300).astype(E4M3), powers(2, 3)
    expert, expert_scale = gpucast.cast(numbers(64, 96), "FLOAT4E2M1"), powers(64, 3)
    held = {
        "layers.0.attn.wq_a.weight": dense,
        "layers.0.attn.wq_a.scale": dense_scale,
        "layers.0.ffn.experts.0.w1.weight": pairs(expert).view(np.int8),
        "layers.0.ffn.experts.0.w1.scale": expert_scale,
    }
    wanted = {
        "layers.0.attn.wq_a.weight": values(dense, dense_scale, 128, 128),
        "layers.0.ffn.experts.0.w1.weight": values(expert, expert_scale, 32),
    }
    return held, wanted


def gpt_oss() -> tuple[Held, Held]:
    codes, scales = gpucast.cast(numbers(3, 7, 96), "FLOAT4E2M1"), powers(3, 7, 3)
    held = {"e.w_blocks": pairs(codes).reshape(3, 7, 3, 16), "e.w_scales": scales.view(np.uint8)}
    return held, {"e.w": values(codes, scales, 32).transpose(0, 2, 1)}


def transformers_exponents() -> tuple[Held, Held]:
    """Fp8Quantize with scale_fmt="ue8m0"."""
    codes, scales = numbers(256, 384).astype(E4M3), powers(2, 3)
    return {"l.weight": codes, "l.weight_scale_inv": scales}, {"l.weight": values(codes, scales, 128, 128)}


def comfyui(codes: Any, scale: Any, **format: Any) -> tuple[Held, Held]:
    held = {"m.l.weight": codes, "m.l.weight_scale": np.asarray(scale), "m.l.comfy_quant": said(**format)}
    return held, {"m.l.weight": codes.astype(np.float32) * scale}


def columns(*shape: int, name: str) -> tuple[Held, Held]:
    codes, scales = numbers(*shape).astype(E4M3), numbers(*shape[:-2], 1, shape[-1], seed=1)
    return {name: codes, f"{name}_scale": scales}, {name: (codes.astype(np.float64) * scales).astype(np.float32)}


def comfyui_mxfp8() -> tuple[Held, Held]:
    """Its scales are in whole tiles of 128 rows of 4, as cuBLAS reads them: "Scaling Factors Layout" of 1D blocks."""
    codes, scales = numbers(160, 96).astype(E4M3), powers(160, 3)
    tiles = np.zeros(2 * 512, np.uint8)
    for (row, column), scale in np.ndenumerate(scales.view(np.uint8)):
        tiles[row // 128 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column] = scale
    held = {"l.weight": codes, "l.weight_scale": tiles.reshape(256, 4), "l.comfy_quant": said(format="mxfp8")}
    return held, {"l.weight": values(codes, scales, 32)}


def older_comfyui(prefix: str) -> tuple[Held, Held]:
    """comfy/utils.py convert_old_quants."""
    held = {f"{prefix}{n}.{part}": x for n in "lm" for part, x in (("weight", F8), ("scale_weight", np.float32(2)))}
    wanted = {f"{prefix}{n}.weight": F8.astype(np.float32) * 2 for n in "lm"}
    return held | {f"{prefix}scaled_fp8": np.empty(0, E4M3)}, wanted


def said_by_compressed_tensors(format: str = "int-quantized", **weights: Any) -> Any:
    group = {"targets": ["Linear"], "weights": {"type": "int", "dynamic": False, **weights}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


V4 = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
#: Tensors and their numbers, and what config.json says of their quantization.
READ: dict[str, tuple[tuple[Held, Held], Any]] = {
    "a scalar": (one(np.float32(0.5), 0.5), {}),
    "one": (one(np.full((1,), 0.5, ml_dtypes.bfloat16), 0.5), {}),
    "a scale of 1x1": (one(np.full((1, 1), 3, np.float16), 3), {}),
    "rows": (one(ROWS[:, 0], ROWS), {}),
    "a column": (one(ROWS, ROWS), {}),
    "groups": (one(np.arange(1, 25, dtype=np.float32).reshape(6, 4), np.arange(1, 25).reshape(6, 4).repeat(2, 1)), {}),
    "bytes": (one(np.full((6, 2), 130, np.uint8), 8), {}),
    "E8M0": (one(np.full((6, 2), 4, E8M0), 4), {}),
    "blocks that the shapes tell": (blocks((128, 192), 64, 64), {}),
    "ragged blocks that the shapes tell": (blocks((33, 100), 64, 16), {}),
    "blocks of 32x32": (blocks((256, 96), 32, 32), {}),
    "ragged blocks of 128x128": (blocks((201, 203), 128, 128), {}),
    "ragged rows of 128x128": (blocks((576, 256), 128, 128), {}),
    **{
        f"{shape} in blocks of {block}": (blocks(shape, *block), {"quant_method": "fp8", "weight_block_size": block})
        for shape, block in (
            ((100, 200), (64, 64)),
            ((100, 200), (1, 128)),
            ((6, 130), (1, 48)),
            ((200, 100), (128, 32)),
            ((90, 70), (50, 64)),
            ((130, 200), (100, 100)),
            ((40, 30), (64, 64)),
        )
    },
    **{
        f"blocks of {block} by the groups of compressed-tensors": (
            blocks((192, 192), *block),
            said_by_compressed_tensors(
                "float-quantized", type="float", num_bits=8, strategy="block", block_structure=said
            ),
        )
        for block, said in (((96, 96), "96x96"), ((128, 128), [128, 128]))
    },
    "compressed-tensors, int-quantized": (
        int_quantized(),
        said_by_compressed_tensors(num_bits=8, symmetric=False, strategy="channel"),
    ),
    "ModelOpt, NVFP4": (modelopt_nvfp4(), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "experts": (experts(), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "DeepSeek-V4": (deepseek_v4(), V4),
    "gpt-oss": (gpt_oss(), {"quant_method": "mxfp4"}),
    "transformers, exponents": (transformers_exponents(), {}),
    "ComfyUI, float8": (comfyui(F8, np.float32(2), format="float8_e4m3fn"), {}),
    "ComfyUI, int8": (comfyui(I8, np.float32(2), format="int8_tensorwise"), {}),
    "ComfyUI, int8 by rows": (comfyui(I8, ROWS, format="int8_tensorwise"), {}),
    "columns": (columns(6, 8, name="l.weight"), {}),
    "Llama 4": (columns(3, 260, 10, name="m.experts.gate_up_proj"), {"quant_method": "fbgemm_fp8"}),
    "ComfyUI, MXFP8": (comfyui_mxfp8(), {}),
    "ComfyUI, older": (older_comfyui(""), {}),
    "ComfyUI, older, whole": (older_comfyui("model.diffusion_model."), {}),
}
#: What is no scale, though it is named so, and what is no part of it.
BESIDE = {
    "logit_scale": np.float32(4.5),
    "layer_scale": np.ones(3, np.float32),
    "norm.scale": np.ones(4, np.float32),
    "norm.weight": np.ones(4, np.float32),
    "position_ids": np.arange(8).reshape(4, 2),
}


@pytest.mark.parametrize("case", READ)
def test_scales_are_read(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (held, wanted), quantization = READ[case]
    monkeypatch.setattr(dequantized, "_PIECE", 7 * 32)
    save("in/model.safetensors", held | BESIDE)
    config = {"torch_dtype": "bfloat16", "expert_dtype": "fp4", "quantization_config": quantization}
    Path("in/config.json").write_text(json.dumps(config))
    # A single file of the folder is read in the same way.
    assert convert("in", "out", "--to", "FLOAT", "--verify", "all") == 0
    assert convert("in/model.safetensors", "out.safetensors", "--to", "FLOAT", "--verify") == 0
    for path in ("out/model.safetensors", "out.safetensors"):
        found = files.load(path)
        assert found.keys() == wanted.keys() | BESIDE.keys()
        for name, x in wanted.items():
            assert_same(found[name], x.astype(np.float32))
    written = json.loads(Path("out/config.json").read_text())
    assert "quantization_config" not in written and written["torch_dtype"] == "float32"


@pytest.mark.parametrize("case", READ)
@pytest.mark.parametrize("wrong", [np.nan, np.inf], ids=["NaN", "infinite"])
def test_a_scale_that_is_no_number_is_refused_or_counted(case: str, wrong: float, capsys: Any) -> None:
    (held, _), quantization = READ[case]
    held, changed = {name: np.array(x) for name, x in held.items()}, set[str]()
    for name, x in held.items():
        is_scale = "scale" in name and "input" not in name and x.dtype.kind in "fV" and x.dtype.name != "float8_e4m3fn"
        if is_scale and not (wrong == np.inf and x.dtype.name == "float8_e8m0fnu"):
            x.reshape(-1)[0] = wrong
            changed.add(x.dtype.name)
    save("in/model.safetensors", held)
    Path("in/config.json").write_text(json.dumps({"quantization_config": quantization}))
    if changed - {"float8_e8m0fnu"}:
        assert "are infinite or NaN; leave" in failure(capsys, "in", "out", "--to", "FLOAT", "--allow-loss")
        return
    # The specification of FLOAT8E8M0 has a NaN, for a block without meaning.
    assert main(["convert", "in", "out", "--to", "FLOAT", "--allow-loss"]) == 0
    assert not changed or "NaN" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("wrong", [0, np.inf, -np.inf, np.nan])
def test_a_global_scale_that_divides_is_a_number(wrong: float, capsys: pytest.CaptureFixture[str]) -> None:
    """By an infinite one all numbers would be zero."""
    parts = {"packed": np.ones((2, 16), np.uint8), "scale": np.ones((2, 2), E4M3), "global_scale": np.float32([wrong])}
    save("in.safetensors", {f"l.weight_{part}": x for part, x in parts.items()})
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT", "--allow-loss")
    assert "1 of the 1 scales 'l.weight_global_scale' are infinite or NaN" in message


def test_formats_in_the_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    held = {f"m.{name}.{part}": x for name in "lk" for part, x in (("weight", F8), ("weight_scale", np.float32(2)))}
    # The longest name that is the weight's end counts.
    layers = {name: {"format": "float8_e4m3fn"} for name in ("m.l", "k")} | {"l": {"format": "int8_tensorwise"}}
    entry = {"format_version": "1.0", "layers": layers}
    files.save("in.safetensors", held, {"_quantization_metadata": json.dumps(entry)})
    assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    with files.TensorFile("out.safetensors") as file:
        assert not file.metadata
    assert_same(files.load("out.safetensors")["m.l.weight"], F8.astype(np.float32) * 2)
    message = failure(capsys, "in.safetensors", "out.safetensors", "--to", "FLOAT", "--exclude", "m.l.*")
    assert "cast all its weights (--rule '*=T'), or none" in message
    files.save("in.safetensors", older_comfyui("")[0])
    assert "has the mark" in failure(
        capsys, "in.safetensors", "x.safetensors", "--to", "FLOAT", "--exclude", "m.weight"
    )


def shards(held: dict[str, dict[str, Any]], **config: Any) -> None:
    """The folder `in`, of several files with an index, and its config.json."""
    checkpoint("in", held)
    Path("in/config.json").write_text(json.dumps(config))


def test_scales_in_another_file_than_their_weight() -> None:
    q = quantized(NAMES["l.weight"], "FLOAT8E4M3FN", "block")
    one = {"l.weight": q.data, "n.weight": np.ones(4, np.float32)}
    two = {"l.weight_scale_inv": q.scales, "m.weight": numbers(4, 6)}
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    shards({"1": one, "2": two}, quantization_config=said, vocab=3)
    for source in ("in", "in/model.safetensors.index.json"):
        assert convert(source, "out", "--to", "BFLOAT16", "--verify", "all") == 0
        assert_same(files.load("out/1.safetensors")["l.weight"], q.dequantize("BFLOAT16"))
        assert list(files.load("out/2.safetensors")) == ["m.weight"]
        index = json.loads(Path("out/model.safetensors.index.json").read_text())
        places = {"l.weight": "1.safetensors", "n.weight": "1.safetensors", "m.weight": "2.safetensors"}
        assert index["weight_map"] == places
        assert index["metadata"]["total_size"] == 2 * (264 * 256 + 4 + 24)
        for path in Path("out").iterdir():
            path.unlink()
        Path("out").rmdir()
    # Kept with its scales, wherever they are.
    assert convert("in/model.safetensors.index.json", "out", "--to", "FLOAT16", "--exclude", "l.weight") == 0
    assert_same(files.load("out/1.safetensors")["l.weight"], q.data)
    assert_same(files.load("out/2.safetensors")["l.weight_scale_inv"], q.scales)
    # And from shards to shards in the style of gpucast.
    assert convert("in", "i4", "--to", "INT4", "--scale", "block", "--style", "gpucast", "--verify") == 0
    index = json.loads(Path("i4/model.safetensors.index.json").read_text())
    assert index["weight_map"]["l.weight.scales"] == "1.safetensors"
    assert json.loads(Path("i4/config.json").read_text()) == {"vocab": 3}


def test_new_scales_beside_old_ones_that_are_kept_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    q = quantized(NAMES["l.weight"][:256], "FLOAT8E4M3FN", "per-tensor")
    held = {
        f"{name}.{part}": x for name in ("l", "lm_head") for part, x in (("weight", q.data), ("weight_scale", q.scales))
    }
    shards({"1": held}, quantization_config={})
    options = ["--to", "FLOAT8E4M3FN", "--scale", "block", "--style", "deepseek"]
    # lm_head is left alone by this style, and so would keep scales that its loaders do not look for.
    assert "'lm_head.weight' is kept with its scales" in failure(capsys, "in", "out", *options)
    assert convert("in", "out", *options, "--include", "*.weight") == 0
    assert files.load("out/1.safetensors").keys() == {
        f"{n}.weight{s}" for n in ("l", "lm_head") for s in ("", "_scale_inv")
    }


def test_the_name_of_any_part_keeps_all_parts() -> None:
    held = {"l.weight": F8, "l.weight_scale": np.ones(1, np.float32), "norm": np.ones(3, np.float32)}
    files.save("in.safetensors", held)
    for name in ("l.weight", "l.weight_scale"):
        assert convert("in.safetensors", "out.safetensors", "--to", "FLOAT16", "--exclude", name) == 0
        found = files.load("out.safetensors")
        assert found.keys() == held.keys()
        assert_same(found["l.weight"], F8)
        assert_same(found["l.weight_scale"], held["l.weight_scale"])


def test_our_own_style_damaged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # As another program may write it.
    monkeypatch.setattr(named_arrays, "_texts", lambda texts: dict(texts or {}))
    files.save("in.safetensors", {"w": numbers(4, 256)})
    assert convert("in.safetensors", "q.safetensors", "--to", "INT8", "--scale", "block") == 0
    with files.TensorFile("q.safetensors") as file:
        metadata = file.metadata
    held = files.load("q.safetensors")
    key = "gpucast.quantized.w"
    entry = json.loads(metadata[key])

    def said(tensors: dict[str, Any], entry: object) -> str:
        files.save("bad.safetensors", tensors, {key: entry if isinstance(entry, str) else json.dumps(entry)})
        return failure(capsys, "bad.safetensors", "out.safetensors", "--to", "FLOAT", "--include", "*")

    assert "its scales 'w.scales' are missing" in said({"w": held["w"]}, entry)
    assert "expected FLOAT (4, 2)" in said({**held, "w.scales": np.ones((4, 1), np.float32)}, entry)
    assert "expected INT8" in said({**held, "w": held["w"].view(np.uint8)}, entry)
    assert "not as convert writes" in said(held, {**entry, "axis": 0})
    assert "is not what this version of gpucast writes" in said(held, "{")
    assert "'rule' is missing" in said(held, {name: text for name, text in entry.items() if name != "rule"})
    assert "must be one of" in said(held, {**entry, "scale": "INT8"})
    scalar = {"w": np.asarray(held["w"][0, 0]), "w.scales": np.ones(1, np.float32)}
    assert "has shape ()" in said(scalar, {**entry, "block": "axis", "axis": 0})
    empty = {"w": held["w"][:, :0], "w.scales": np.ones((4, 0), np.float32)}
    assert "has shape (4, 0)" in said(empty, entry)
    # What gpucast.save writes is in this style.
    q = gpucast.quantize(numbers(4, 256), "int8_128")
    gpucast.save("saved.safetensors", {"w": q})
    assert convert("saved.safetensors", "out.safetensors", "--to", "FLOAT") == 0
    assert_same(files.load("out.safetensors")["w"], q.dequantize())
    # Metadata of a missing tensor is ignored.
    files.save("bad.safetensors", {"v": numbers(2, 2)}, {key: json.dumps(entry)})
    assert convert("bad.safetensors", "out.safetensors", "--to", "FLOAT16") == 0


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
