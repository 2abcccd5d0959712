# SPDX-License-Identifier: Apache-2.0
"""The rule that finds the scales: the style's own, the one that was asked for, or that of a recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

import gpucast
from codes import assert_same
from conversions import convert, failure, header, model, numbers, save
from gpucast import files
from gpucast.cli import main
from gpucast.quantization import formats


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model({"l.weight": numbers(64, 128)})
    return tmp_path


@pytest.mark.parametrize(
    ("to", "scale", "style", "rule", "format"),
    [
        ("FLOAT8E4M3FN", "mx", "gpucast", None, "mxfp8e4m3"),
        ("FLOAT8E4M3FN", "mx", "gpucast", "up", "mxfp8e4m3_up"),
        ("FLOAT8E5M2", "mx", "gpucast", "even", "mxfp8e5m2_even"),
        ("FLOAT6E2M3", "mx", "gpucast", "up", "mxfp6e2m3_up"),
        ("FLOAT8E4M3FN", "mx", "compressed-tensors", None, "compressed-tensors-mxfp8"),
        ("FLOAT8E4M3FN", "mx", "compressed-tensors", "floor", "mxfp8e4m3"),
        ("FLOAT4E2M1", "mx", "compressed-tensors", None, "compressed-tensors-mxfp4"),
        ("FLOAT4E2M1", "mx", "compressed-tensors", "floor", "mxfp4"),
        ("INT4", "block", "gpucast", None, "int4_128"),
        ("INT4", "block", "gpucast", "full_range", "int4_128_full_range"),
        ("INT2", "per-tensor", "gpucast", "no_clipping", "int2_tensor_no_clipping"),
        ("INT4", "block", "compressed-tensors", None, "compressed-tensors-int4-128"),
        ("INT8", "per-channel", "compressed-tensors", None, "compressed-tensors-int8-row"),
        ("FLOAT8E4M3FN", "per-tensor", "compressed-tensors", None, "compressed-tensors-fp8"),
        ("FLOAT8E4M3FN", "per-channel", "compressed-tensors", None, "compressed-tensors-fp8-row"),
        ("INT8", "per-channel", "compressed-tensors", "amax", "int8_axis"),
        ("INT4", "per-channel", "compressed-tensors", None, "compressed-tensors-int4-row"),
        ("INT8", "block", "compressed-tensors", None, "compressed-tensors-int8-128"),
        ("FLOAT8E4M3FN", "per-tensor", "comfyui", None, "comfy-kitchen-fp8"),
        ("FLOAT8E5M2", "per-tensor", "comfyui", None, "comfy-kitchen-fp8-e5m2"),
        ("FLOAT4E2M1", "nvfp4", "comfyui", None, "comfy-kitchen-nvfp4"),
        ("FLOAT4E2M1", "nvfp4", "comfyui", "amax", "nvfp4"),
        ("UINT4", "block", "compressed-tensors", None, "uint4_zp_128"),
    ],
)
def test_the_rule_that_finds_the_scales(
    to: str, scale: str, style: str, rule: str | None, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--to", to, "--scale", scale, "--style", style, *(["--scale-rule", rule] if rule else [])]
    assert main(["convert", "in", "out", *options, "--verify", "all"]) == 0
    # It says where a library's name stands for scales that are not that library's.
    is_own = style in ("compressed-tensors", "comfyui") and rule is None and not format.startswith(("comp", "comfy"))
    assert is_own == ("by gpucast's own rule, since no recipe has" in capsys.readouterr().out)
    assert convert("out", "back", "--to", "FLOAT") == 0
    wanted = gpucast.quantize(numbers(64, 128), format, axis=0 if "axis" in format else -1).dequantize()
    with files.TensorFile("back/model.safetensors") as file:
        (found,) = [tensor.read() for tensor in file.tensors]
    assert_same(found, wanted)


@pytest.mark.parametrize(
    ("to", "scale", "base"),
    [
        ("INT4", "block", "compressed-tensors-int4-128"),
        ("UINT4", "block", "uint4_zp_128"),
        ("FLOAT8E4M3FN", "per-channel", "compressed-tensors-fp8-row"),
    ],
)
def test_scales_have_the_type_of_the_weights(to: str, scale: str, base: str) -> None:
    """As llm-compressor writes them."""
    x = numbers(64, 128).astype(ml_dtypes.bfloat16)
    save("in/model.safetensors", {"l.weight": x})
    options = ["--to", to, "--scale", scale, "--style", "compressed-tensors"]
    assert convert("in", "out", *options, "--verify", "all") == 0
    assert header("out/model.safetensors")["l.weight_scale"][0] == "BF16"
    assert convert("out", "back", "--to", "FLOAT") == 0
    of_library = base.startswith("compressed")
    format = base if of_library else replace(formats.find(base, "test"), scale=gpucast.dtype("BFLOAT16"))
    wanted = gpucast.quantize(x, format).dequantize()
    assert_same(files.load("back/model.safetensors")["l.weight"], wanted)


# ---- --style RECIPE: the codes and scales of a recipe, in a style of its loaders ----

X = gpucast.cast(np.random.default_rng(5).standard_normal((256, 256)).astype(np.float32), "BFLOAT16")


def written(how: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a model with two weights that loaders join: the tensors of one by the ends of their names, and the config."""
    tensors = {"m.q_proj.weight": X, "m.k_proj.weight": X[:128] * 2, "lm_head.weight": X[:32]}
    model(tensors, model_type="llama")
    assert convert("in", "out", *how.split(), "--allow-loss", "--verify", "all") == 0
    with safe_open("out/model.safetensors", "numpy") as file:
        assert file.metadata()["gpucast_recipe"] == how.rsplit(maxsplit=1)[-1]
    parts = files.load("out/model.safetensors").items()
    config = json.loads(Path("out/config.json").read_text())["quantization_config"]
    return {name.rpartition(".")[2]: part for name, part in parts if "q_proj" in name}, config


@pytest.mark.parametrize("recipe", ["deepgemm-ue8m0-128x128", "deepgemm-128x128"])
def test_squares_are_those_of_deepseek(recipe: str) -> None:
    parts, config = written(f"--to FLOAT8E4M3FN --style {recipe}")
    q = gpucast.quantize(X, recipe)
    assert parts["weight"].tobytes() == q.data.tobytes()
    np.testing.assert_array_equal(parts["weight_scale_inv"], q.scales.astype(np.float32))
    is_power = "ue8m0" if "ue8m0" in recipe else None
    said = config["quant_method"], config.get("scale_fmt"), config["weight_block_size"]
    assert said == ("fp8", is_power, [128, 128])


@pytest.mark.parametrize("recipe", ["compressed-tensors-fp8-row", "vllm-fp8-token"])
def test_rows(recipe: str) -> None:
    parts, config = written(f"--to FLOAT8E4M3FN --style {recipe}")
    q = gpucast.quantize(X, recipe)
    assert parts["weight"].tobytes() == q.data.tobytes()
    np.testing.assert_array_equal(parts["weight_scale"].astype(np.float32), q.scales)
    assert config["config_groups"]["group_0"]["weights"]["strategy"] == "channel"


@pytest.mark.parametrize("recipe", ["compressed-tensors-nvfp4", "te-nvfp4"])
def test_weights_that_are_joined_share_the_number_of_the_library(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, _ = written(f"--to FLOAT4E2M1 --style {recipe}")
    # That of k_proj is larger, and the file holds u itself.
    amax = float(np.abs(X.astype(np.float32)[:128] * 2).max())
    found = gpucast.quantize(X, recipe, amax=amax)
    assert np.float32(1) / parts["weight_global_scale"][0] == found.global_scale
    assert parts["weight_packed"].tobytes() == found.data.data.tobytes()
    assert parts["weight_scale"].tobytes() == found.scales.tobytes()


def test_a_file_without_a_config_holds_any_recipe() -> None:
    save("in.safetensors", {"w": X})
    assert convert("in.safetensors", "out.safetensors", *"--to FLOAT4E2M1 --style torchao-nvfp4".split()) == 0
    parts = files.load("out.safetensors")
    q = gpucast.quantize(X, "torchao-nvfp4")
    assert parts["w.scales"].tobytes() == q.scales.tobytes() and parts["w.global_scale"] == q.global_scale
    assert parts["w"].tobytes() == q.data.get().tobytes()


def test_a_recipe_starts_from_numbers_without_scales(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("in", "out", *"--to FLOAT8E4M3FN --scale per-channel --style compressed-tensors".split()) == 0
    recipe = "--to FLOAT4E2M1 --style compressed-tensors-nvfp4".split()
    assert "it has scales: convert it to BFLOAT16 first" in failure(capsys, "out", "again", *recipe)
    assert convert("out", "plain", "--to", "BFLOAT16") == convert("plain", "again", *recipe) == 0
