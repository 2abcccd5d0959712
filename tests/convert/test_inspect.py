# SPDX-License-Identifier: Apache-2.0
"""`gpucast inspect` says what tensors are, and which `convert` does not understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpucast
from conversions import convert, failure, model, numbers
from fuzz import checkpoints
from gpucast import files
from gpucast.cli import main

pytestmark = pytest.mark.usefixtures("folder")


def inspected(path: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    """The document, its tensors by name, and the text."""
    capsys.readouterr()
    assert main(["inspect", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert main(["inspect", path, "--all"]) == 0
    assert all(one["name"] in capsys.readouterr().out for one in document["tensors"][:1])
    return document, {one["name"]: one for one in document["tensors"]}, text


@pytest.mark.parametrize("kind", checkpoints.KINDS)
def test_checkpoints_of_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints.make(kind)
    made.save(Path("in"))
    document, found, text = inspected("in", capsys)
    assert not any(one["problem"] for one in found.values()) and "not understood" not in text
    # A column that holds nothing is not printed.
    assert ("what" in text.splitlines()[1].split()) == any(one["what"] for one in found.values())
    assert document["bytes"] == sum(np.asarray(x).nbytes for x in made.tensors.values())
    assert {name: tuple(found[name]["shape"]) for name in made.numbers} == {
        name: x.shape for name, x in made.numbers.items()
    }
    quantized = [one for one in found.values() if one["style"]]
    assert quantized and all(" scale for " in one["kind"] for one in quantized)
    assert (made.section is None) == (not document["said"])
    for name, one in found.items():
        assert bool(one["what"]) == name.endswith(("input_scale", "input_global_scale", "k_scale", "v_scale"))


def test_what_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"l.weight": np.ones((6, 8), np.int8), "l.weight_scale": np.ones((6, 1), np.float32)}
    held |= {"l.deq_scale": np.ones(6, np.float32), "m.weight": numbers(4, 4).astype(ml_dtypes.float8_e4m3fn)}
    model(held, text_config={"quantization_config": {"quant_method": "gptq", "bits": 4}})
    document, found, text = inspected("in", capsys)
    assert {name for name, one in found.items() if one["problem"]} == {"l.deq_scale", "m.weight"}
    assert "not understood: 'l.deq_scale' is part of a weight in another form (Ascend modelslim" in text
    assert list(document["said"].items()) == [
        (
            "in/config.json: text_config: quantization_config",
            document["said"]["in/config.json: text_config: quantization_config"],
        )
    ]
    assert "by GPTQ, which is not read here" in text
    assert "GPTQ" in failure(capsys, "in", "out", "--to", "FLOAT")


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_plain_files(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(f"x.{suffix}", {"x": gpucast.cast(numbers(3, 5), "BFLOAT16")})
    _, found, text = inspected(f"x.{suffix}", capsys)
    assert (found["x"]["kind"], found["x"]["shape"], found["x"]["bytes"]) == ("BFLOAT16", [3, 5], 30)
    assert "1 tensor in 1 file, 30 bytes" in text


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Pow", ["h", "e"], ["y"])]
    held = [numpy_helper.from_array(np.ones((2, 2), np.float32), "w"), numpy_helper.from_array(np.float32(2), "e")]
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], held), opset_imports=opsets), "m.onnx"
    )
    _, found, text = inspected("m.onnx", capsys)
    assert found["w"]["what"] == "weight" and found["e"]["what"] == "no weight: Pow takes no weight there"
    assert "no weight" in text


def test_styles_of_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    files.save("in.safetensors", {"w": numbers(4, 256), "norm": np.ones(4, np.float32)})
    assert convert("in.safetensors", "q.safetensors", "--to", "INT8", "--scale", "block") == 0
    _, found, _ = inspected("q.safetensors", capsys)
    assert (found["w"]["kind"], found["w"]["style"]) == ("INT8, one FLOAT scale for 128 elements", "gpucast")
    assert found.keys() == {"w", "norm"}
