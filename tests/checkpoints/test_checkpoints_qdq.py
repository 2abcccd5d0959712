# SPDX-License-Identifier: Apache-2.0
"""Models whose weights become codes: DequantizeLinear gives them back, and onnxruntime runs it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpucast
from gpucast import files
from gpucast.cli import main
from tensors import leftovers

pytestmark = pytest.mark.usefixtures("folder")

X = np.linspace(-1, 1, 5 * 256, dtype=np.float32).reshape(5, 256)
CHANCE = np.random.default_rng(0)
W = (CHANCE.standard_normal((256, 256)) * 0.1).astype(np.float32)
V = CHANCE.standard_normal((256, 8)).astype(np.float16)


def save(opset: int = 23, external: bool = False, hidden: str = "h") -> None:
    """y = (x W + b) V: W is FLOAT, V is FLOAT16, b has one dimension."""
    nodes = [
        helper.make_node("MatMul", ["x", "W"], [hidden]),
        helper.make_node("Add", [hidden, "b"], ["i"]),
        helper.make_node("Cast", ["V"], ["Vf"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["i", "Vf"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 256), ("y", 8))]
    arrays = {"W": W, "b": np.ones(256, np.float32), "V": V}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "test", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", opset)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    onnx.save(proto, "in.onnx", save_as_external_data=external, location="in.onnx.bin", size_threshold=100)


def convert(*argv: str) -> int:
    return main(["convert", "in.onnx", "out.onnx", *argv, "--quiet"])


def run() -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # As it is written: without what would change the order of operations.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = onnxruntime.InferenceSession("out.onnx", options, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    return np.asarray(y)


def restored(w: np.ndarray, format: str) -> np.ndarray:
    """As the model does it: to FLOAT, and from there to the type of the weights."""
    axis = 0 if format.endswith("_axis") else -1
    return np.asarray(gpucast.dequantize(gpucast.quantize(w, format, axis=axis), "FLOAT")).astype(w.dtype)


@pytest.mark.parametrize("external", [False, True], ids=["within", "external"])
@pytest.mark.parametrize(
    ("to", "scale", "format", "opset"),
    [
        ("INT8", "per-tensor", "int8_tensor", 21),
        ("INT8", "per-channel", "int8_axis", 21),
        ("INT8", "block", "int8_128", 21),
        ("UINT8", "per-channel", "uint8_zp_axis", 23),
        ("INT4", "block", "int4_128", 21),
        ("UINT4", "block", "uint4_zp_128", 23),
        ("INT2", "block", "int2_128", 25),
        ("UINT2", "per-channel", "uint2_zp_axis", 25),
        ("FLOAT8E4M3FN", "per-tensor", "float8e4m3fn_tensor", 21),
        ("FLOAT8E5M2", "per-channel", "float8e5m2_axis", 23),
    ],
)
def test_onnxruntime_runs_them(to: str, scale: str, format: str, opset: int, external: bool) -> None:
    save(opset, external)
    assert convert("--to", to, "--scale", scale, "--verify", "all") == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert os.path.exists("out.onnx.data") == external
    proto = onnx.load("out.onnx", load_external_data=False)
    assert [node.op_type for node in proto.graph.node][:3] == ["DequantizeLinear", "DequantizeLinear", "Cast"]
    held = {one.name: TensorProto.DataType.Name(one.data_type) for one in proto.graph.initializer}
    assert held["W_quantized"] == held["V_quantized"] == to
    assert "W" not in held and held["b"] == "FLOAT"
    wanted = (X @ restored(W, format) + 1) @ restored(V, format).astype(np.float32)
    np.testing.assert_allclose(run(), wanted, rtol=1e-5, atol=1e-4)
    assert np.abs(wanted - (X @ W + 1) @ V.astype(np.float32)).max() > 1e-3


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def failure(*argv: str) -> str:
        capsys.readouterr()
        assert convert(*argv) == 1
        assert leftovers(Path(), "in.onnx") == []
        return capsys.readouterr().err

    save(20)
    assert "the model has opset 20, and --scale needs 21 or later" in failure("--to", "INT8", "--scale", "per-tensor")
    save(23)
    for to, scale in (("FLOAT8E4M3FN", "block"), ("FLOAT8E4M3FN", "mx"), ("FLOAT4E2M1", "nvfp4")):
        assert "--style qdq cannot hold" in failure("--to", to, "--scale", scale)
    message = failure("--to", "INT8", "--scale", "per-tensor", "--style", "gpucast")
    assert "--style qdq is for models (.onnx), and they have no other" in message
    assert "DequantizeLinear of opset 23 does not take INT2" in failure("--to", "INT2", "--scale", "block")
    save(23, hidden="W_scale")
    assert "the model has the name 'W_scale' already" in failure("--to", "INT8", "--scale", "per-tensor")
    files.save("x.safetensors", {"w": W})
    assert (
        main(["convert", "x.safetensors", "y.safetensors", "--to", "INT8", "--scale", "block", "--style", "qdq"]) == 1
    )
    assert "--style qdq is for models (.onnx)" in capsys.readouterr().err
