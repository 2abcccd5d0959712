# SPDX-License-Identifier: Apache-2.0
"""The rule that finds the scales: the style's own, or the one that was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import pytest

import gpucast
from codes import assert_same
from conversions import convert, header, model, numbers, save
from gpucast import files
from gpucast.core import formats


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
        ("FLOAT8E4M3FN", "mx", "compressed-tensors", None, "mxfp8e4m3_up"),
        ("FLOAT8E4M3FN", "mx", "compressed-tensors", "floor", "mxfp8e4m3"),
        ("FLOAT4E2M1", "mx", "compressed-tensors", None, "mxfp4_even"),
        ("FLOAT4E2M1", "mx", "compressed-tensors", "floor", "mxfp4"),
        ("INT4", "block", "gpucast", None, "int4_128"),
        ("INT4", "block", "gpucast", "full_range", "int4_128_full_range"),
        ("INT2", "per-tensor", "gpucast", "no_clipping", "int2_tensor_no_clipping"),
        ("INT4", "block", "compressed-tensors", None, "int4_128_full_range"),
        ("INT8", "per-channel", "compressed-tensors", None, "int8_axis_full_range"),
        ("INT8", "per-channel", "compressed-tensors", "amax", "int8_axis"),
        ("UINT4", "block", "compressed-tensors", None, "uint4_zp_128"),
    ],
)
def test_the_rule_that_finds_the_scales(to: str, scale: str, style: str, rule: str | None, format: str) -> None:
    options = ["--to", to, "--scale", scale, "--style", style, *(["--scale-rule", rule] if rule else [])]
    assert convert("in", "out", *options, "--verify", "all") == 0
    assert convert("out", "back", "--to", "FLOAT") == 0
    wanted = gpucast.quantize(numbers(64, 128), format, axis=0 if "axis" in format else -1).dequantize()
    with files.TensorFile("back/model.safetensors") as file:
        (found,) = [tensor.read() for tensor in file.tensors]
    assert_same(found, wanted)


@pytest.mark.parametrize(
    ("to", "scale", "base"),
    [
        ("INT4", "block", "int4_128_full_range"),
        ("UINT4", "block", "uint4_zp_128"),
        ("FLOAT8E4M3FN", "per-channel", "float8e4m3fn_axis"),
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
    format = replace(formats.find(base, "test"), scale=gpucast.dtype("BFLOAT16"))
    wanted = gpucast.quantize(x, format, axis=0 if "axis" in base else -1).dequantize()
    assert_same(files.load("back/model.safetensors")["l.weight"], wanted)
