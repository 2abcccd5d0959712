# SPDX-License-Identifier: Apache-2.0
"""ONNX models whose initializers change type: they are valid, run in onnxruntime, and give the expected outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import conversions
import gpucast
from codes import assert_same
from gpucast import files
from gpucast.cli import main
from gpucast.core.dtypes import dtype
from tensors import leftovers

CARELESS = ("--scale", "none", "--allow-loss")
X = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 64)


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "W": (rng.standard_normal((64, 32)) * 0.1).astype(np.float32),
        "b": rng.standard_normal(32).astype(np.float32),
        "shape": np.array([-1, 32]),
        "V": rng.standard_normal((32, 8)).astype(np.float16),
    }


def model(opset: int = 23, **changes: Any) -> onnx.ModelProto:
    """y = ((x W + b) or x W) V: W is used by a node, b within a subgraph, V by a Cast alone."""
    branches = {}
    for name, node in {
        "then_branch": helper.make_node("Add", ["h", "b"], ["t"]),
        "else_branch": helper.make_node("Identity", ["h"], ["t"]),
    }.items():
        branches[name] = helper.make_graph([node], name, [], [helper.make_tensor_value_info("t", 1, ["n", 32])])
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("If", ["yes"], ["i"], **branches),
        helper.make_node("Reshape", ["i", "shape"], ["j"]),
        helper.make_node("Cast", ["V"], ["Vf"], "to_float", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["j", "Vf"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["n", 64]), *changes.pop("inputs", [])]
    outputs = [helper.make_tensor_value_info("y", 1, ["n", 8])]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    initializers.append(numpy_helper.from_array(np.array(True), "yes"))
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    ir_version = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def save(path: str, external: bool, proto: onnx.ModelProto | None = None) -> None:
    location = f"{path}.bin"
    onnx.save(proto or model(), path, save_as_external_data=external, location=location, size_threshold=10)


def convert(*argv: str) -> int:
    return conversions.convert(*argv, *CARELESS)


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    return conversions.failure(capsys, *argv, *CARELESS)


def run(path: str) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": X})
    return np.asarray(y)


def expected(to: str) -> np.ndarray:
    """The outputs with the weights cast there and back."""
    cast = {name: gpucast.cast(gpucast.cast(w, to), w.dtype) for name, w in weights().items() if name != "shape"}
    return (X @ cast["W"] + cast["b"]) @ cast["V"].astype(np.float32)


@pytest.mark.parametrize("external", [False, True], ids=["within", "external"])
@pytest.mark.parametrize(
    "to", ["BFLOAT16", "FLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT8", "INT4", "DOUBLE", "FLOAT", "FLOAT4E2M1"]
)
def test_models_stay_valid_and_run(to: str, external: bool, folder: Path) -> None:
    save("in.onnx", external)
    assert convert("in.onnx", "out.onnx", "--to", to, "--verify", "all") == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert os.path.exists("out.onnx.data") == external
    proto = onnx.load("out.onnx")
    assert {t.data_type for t in proto.graph.initializer if t.name not in ("shape", "yes")} == {dtype(to).number}
    by_name = {t.name.split(".")[0].replace("Vf", "V"): t for t in proto.graph.initializer}
    for name, w in weights().items():
        row = dtype(w.dtype) if name == "shape" else dtype(to)
        assert_same(numpy_helper.to_array(by_name[name]), gpucast.cast(w, row), row)
    if to != "FLOAT4E2M1":
        # onnxruntime does not cast these types on a CPU.
        np.testing.assert_allclose(run("out.onnx"), expected(to), rtol=1e-3, atol=1e-4)
    assert leftovers(folder, "in.onnx", "in.onnx.bin", "out.onnx", "out.onnx.data") == []


def test_casts_are_added_merged_and_taken_out(folder: Path) -> None:
    save("in.onnx", False)
    assert convert("in.onnx", "out.onnx", "--to", "BFLOAT16") == 0
    graph = onnx.load("out.onnx").graph
    casts = {node.output[0]: node for node in graph.node if node.op_type == "Cast"}
    # V goes from the new type straight to what its Cast gives.
    assert {name: node.input[0] for name, node in casts.items()} == {"W": "W.bfloat16", "b": "b.bfloat16", "Vf": "V"}
    assert convert("out.onnx", "back.onnx", "--to", "FLOAT") == 0
    back = onnx.load("back.onnx").graph
    assert [node.op_type for node in back.node] == ["MatMul", "If", "Reshape", "MatMul"]
    assert {tensor.name for tensor in back.initializer} == {"W", "b", "shape", "Vf", "yes"}
    np.testing.assert_allclose(run("back.onnx"), run("out.onnx"), rtol=1e-5, atol=1e-5)
    # A Cast that says how it rounds is no copy, even between equal types.
    proto = model()
    proto.graph.node[3].attribute.append(helper.make_attribute("saturate", 0))
    save("in.onnx", False, proto)
    assert convert("in.onnx", "out.onnx", "--to", "FLOAT") == 0
    assert "Cast" in {node.op_type for node in onnx.load("out.onnx").graph.node}
    onnx.checker.check_model("out.onnx", full_check=True)


def test_patterns_and_other_formats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("in.onnx", True)
    assert convert("in.onnx", "out.safetensors", "--to", "FLOAT16", "--exclude", "yes") == 0
    loaded = files.load("out.safetensors")
    assert_same(loaded["W"], gpucast.cast(weights()["W"], "FLOAT16"), dtype("FLOAT16"))
    assert convert("in.onnx", "out.onnx", "--to", "BFLOAT16", "--rule", "W=FLOAT8E5M2", "--rule", "b=keep") == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load("out.onnx").graph.initializer}
    assert kinds["W.float8e5m2"] == TensorProto.FLOAT8E5M2
    assert (kinds["b"], kinds["V"]) == (TensorProto.FLOAT, TensorProto.BFLOAT16)
    for argv in (["out.safetensors", "x.onnx"], ["in.onnx", "x.onnx", "--include", "W", "--rule", "W=STRING"]):
        assert convert(*argv, "--to", "FLOAT") == 1
    said = capsys.readouterr().err
    assert "an .onnx file can be made from an .onnx file alone" in said
    assert "'W' cannot become text" in said


def test_external_data_stays_in_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in").mkdir()
    os.chdir("in")
    save("in.onnx", True)
    os.chdir("..")
    os.rename("in/in.onnx.bin", "secret.bin")
    good = onnx.load("in/in.onnx", load_external_data=False)
    names = ["../secret.bin", str(folder / "secret.bin"), "..\\secret.bin", "", "a/../../secret.bin"]
    for name in names:
        proto = onnx.ModelProto.FromString(good.SerializeToString())
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = name
        Path("in/in.onnx").write_bytes(proto.SerializeToString())
        message = failure(capsys, "in/in.onnx", "out.onnx", "--to", "FLOAT16")
        assert "leads out of the folder" in message or "is no file name" in message
    Path("in/in.onnx").write_bytes(good.SerializeToString())
    assert "is missing" in failure(capsys, "in/in.onnx", "out.onnx", "--to", "FLOAT16")
    Path("in/in.onnx.bin").symlink_to("../secret.bin")
    assert "link that leads out" in failure(capsys, "in/in.onnx", "out.onnx", "--to", "FLOAT16")
    assert leftovers(folder, "in", "secret.bin") == []


def test_malformed_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("in.onnx", True)
    good = onnx.load("in.onnx", load_external_data=False).SerializeToString()

    def refused(message: str, change: Any, *options: str) -> None:
        proto = onnx.ModelProto.FromString(good)
        change(proto)
        Path("bad.onnx").write_bytes(proto.SerializeToString())
        assert message in failure(capsys, "bad.onnx", "out.onnx", "--to", "FLOAT16", *options)

    def entry(key: str, value: str) -> Any:
        def change(proto: onnx.ModelProto) -> None:
            (found,) = (entry for entry in proto.graph.initializer[0].external_data if entry.key == key)
            found.value = value

        return change

    refused("claims bytes", entry("offset", "1000000"))
    refused("claims bytes", entry("length", "100000"))
    refused("claims 8192 bytes of data, the file holds 8188", entry("length", "8188"))
    refused("is no offset or length", entry("offset", "-4"))
    refused("is no offset or length", entry("length", "9" * 30))
    refused("two initializers", lambda proto: setattr(proto.graph.initializer[1], "name", "W"))
    refused("or one has none", lambda proto: setattr(proto.graph.initializer[1], "name", ""))
    refused("2^63", lambda proto: proto.graph.initializer[0].dims.extend([1 << 62, 1 << 62]))
    refused("claims", lambda proto: proto.graph.initializer[0].dims.append(2))
    refused("training_info", lambda proto: proto.training_info.add())
    refused("no graph", lambda proto: proto.ClearField("graph"))
    refused("is a segment", lambda proto: proto.graph.initializer[0].segment.SetInParent())
    refused("imports no operators of ONNX", lambda proto: proto.ClearField("opset_import"))
    refused("entered at opset 13", lambda proto: setattr(proto.opset_import[0], "version", 12), "--to", "BFLOAT16")
    refused("has no initializers", lambda proto: proto.graph.ClearField("initializer"))
    for junk in (b"", b"junk" * 100, good[:-1], good[: len(good) // 2]):
        Path("bad.onnx").write_bytes(junk)
        assert "no ONNX model" in failure(capsys, "bad.onnx", "out.onnx", "--to", "FLOAT16")
    assert leftovers(folder, "in.onnx", "in.onnx.bin", "bad.onnx") == []


def test_initializers_that_are_inputs_keep_their_types(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("in.onnx", False, model(inputs=[helper.make_tensor_value_info("W", 1, [64, 32])]))
    assert main(["convert", "in.onnx", "out.onnx", "--to", "FLOAT16"]) == 0
    assert "left alone (it is an input of the graph too): 'W' (FLOAT)" in capsys.readouterr().out
    message = failure(capsys, "in.onnx", "no.onnx", "--to", "FLOAT16", "--exclude", "[!W]*")
    assert "can be cast: it is an input of the graph too" in message
    onnx.checker.check_model("out.onnx", full_check=True)
    message = failure(capsys, "in.onnx", "out.onnx", "--to", "FLOAT16", "--include", "W")
    assert "'W' is an input of the graph too" in message


def test_external_data_of_a_folder_is_rewritten_and_not_copied(folder: Path) -> None:
    (folder / "in").mkdir()
    os.chdir("in")
    save("in.onnx", True)
    os.chdir("..")
    assert convert("in", "out", "--to", "FLOAT16") == 0
    assert sorted(os.listdir("out")) == [".gpucast.json", "in.onnx", "in.onnx.data"]


def test_external_data_that_is_there_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("in.onnx", True)
    assert convert("in.onnx", "out.onnx", "--to", "FLOAT16") == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    message = failure(capsys, "in.onnx", "out.onnx", "--to", "BFLOAT16")
    assert "out.onnx.data: exists" in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    # A model without external data may be replaced, also by itself.
    save("in.onnx", False)
    assert convert("in.onnx", "in.onnx", "--to", "FLOAT16") == 0
    onnx.checker.check_model("in.onnx", full_check=True)


def test_typed_fields_and_other_types_are_taken_over(folder: Path) -> None:
    proto = model()
    w = proto.graph.initializer[0]
    w.CopyFrom(helper.make_tensor("W", 1, [64, 32], weights()["W"].reshape(-1).tolist()))
    w.doc_string = "about W"
    w.metadata_props.add(key="of", value="W")
    proto.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.complex64), "c"))
    save("in.onnx", False, proto)
    assert convert("in.onnx", "out.onnx", "--to", "FLOAT16", "--verify", "all") == 0
    found = {tensor.name: tensor for tensor in onnx.load("out.onnx").graph.initializer}
    assert list(found["text"].string_data) == [b"a", b"b"]
    assert numpy_helper.to_array(found["c"]).tolist() == [1, 1]
    w = found["W.float16"]
    assert (w.doc_string, w.metadata_props[0].key) == ("about W", "of")
    np.testing.assert_allclose(run("out.onnx"), expected("FLOAT16"), rtol=1e-3, atol=1e-4)


def test_models_that_outgrow_protocol_buffers_get_external_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.onnx_model, "_LARGEST", 10_000)
    save("in.onnx", False)
    assert convert("in.onnx", "half.onnx", "--to", "FLOAT16") == 0
    assert not os.path.exists("half.onnx.data")
    assert convert("half.onnx", "out.onnx", "--to", "DOUBLE", "--verify", "all") == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert os.path.getsize("out.onnx.data") >= 64 * 32 * 8
    # Small tensors stay in the model: shape inference needs their values.
    held = onnx.load("out.onnx", load_external_data=False).graph.initializer
    assert {proto.name for proto in held if proto.HasField("raw_data")} == {"b.float16", "shape", "yes"}
    assert run("out.onnx").shape == (5, 8)


# ---- weights that become codes: DequantizeLinear gives them back, and onnxruntime runs it ----

pytestmark = pytest.mark.usefixtures("folder")

WIDE = np.linspace(-1, 1, 5 * 256, dtype=np.float32).reshape(5, 256)
CHANCE = np.random.default_rng(0)
W = (CHANCE.standard_normal((256, 256)) * 0.1).astype(np.float32)
V = CHANCE.standard_normal((256, 8)).astype(np.float16)


def save_linear(opset: int = 23, external: bool = False, hidden: str = "h") -> None:
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
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("a.domain.of.its.own", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets[:1]))
    onnx.save(proto, "in.onnx", save_as_external_data=external, location="in.onnx.bin", size_threshold=100)


def to_codes(*argv: str) -> int:
    return main(["convert", "in.onnx", "out.onnx", *argv, "--quiet"])


def run_as_written() -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # As it is written: without what would change the order of operations.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (y,) = onnxruntime.InferenceSession("out.onnx", options, providers=["CPUExecutionProvider"]).run(None, {"x": WIDE})
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
    save_linear(opset, external)
    assert to_codes("--to", to, "--scale", scale, "--verify", "all") == 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert os.path.exists("out.onnx.data") == external
    proto = onnx.load("out.onnx", load_external_data=False)
    assert [node.op_type for node in proto.graph.node][:3] == ["DequantizeLinear", "DequantizeLinear", "Cast"]
    held = {one.name: TensorProto.DataType.Name(one.data_type) for one in proto.graph.initializer}
    assert held["W_quantized"] == held["V_quantized"] == to
    assert "W" not in held and held["b"] == "FLOAT"
    wanted = (WIDE @ restored(W, format) + 1) @ restored(V, format).astype(np.float32)
    np.testing.assert_allclose(run_as_written(), wanted, rtol=1e-5, atol=1e-4)
    assert np.abs(wanted - (WIDE @ W + 1) @ V.astype(np.float32)).max() > 1e-3


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def failure(*argv: str) -> str:
        capsys.readouterr()
        assert to_codes(*argv) == 1
        assert leftovers(Path(), "in.onnx") == []
        return capsys.readouterr().err

    save_linear(20)
    assert "the model has opset 20, and --scale needs 21 or later" in failure("--to", "INT8", "--scale", "per-tensor")
    save_linear(23)
    for to, scale in (("FLOAT8E4M3FN", "block"), ("FLOAT8E4M3FN", "mx"), ("FLOAT4E2M1", "nvfp4")):
        assert "--style qdq cannot hold" in failure("--to", to, "--scale", scale)
    message = failure("--to", "INT8", "--scale", "per-tensor", "--style", "gpucast")
    assert "--style qdq is for models (.onnx), and they have no other" in message
    assert "DequantizeLinear of opset 23 does not take INT2" in failure("--to", "INT2", "--scale", "block")
    save_linear(23, hidden="W_scale")
    assert "the model has the name 'W_scale' already" in failure("--to", "INT8", "--scale", "per-tensor")
    files.save("x.safetensors", {"w": W})
    assert (
        main(["convert", "x.safetensors", "y.safetensors", "--to", "INT8", "--scale", "block", "--style", "qdq"]) == 1
    )
    assert "--style qdq is for models (.onnx)" in capsys.readouterr().err


@pytest.mark.parametrize(("inputs", "outputs"), [("w", ""), ("wv", "y"), ("ww", "y")])
def test_a_cast_without_one_input_and_one_output(folder: Path, inputs: str, outputs: str) -> None:
    """Of models that no checker has seen."""
    node = helper.make_node("Cast", [*inputs], [*outputs], to=TensorProto.FLOAT16)
    weights = [numpy_helper.from_array(np.ones((2, 2), np.float32), name) for name in "wv"]
    onnx.save(helper.make_model(helper.make_graph([node], "graph", [], [], weights)), "x.onnx")
    assert convert("x.onnx", "y.onnx", "--to", "FLOAT16", "--include", "*") == 0
    made = onnx.load("y.onnx").graph
    assert [one.op_type for one in made.node].count("Cast") == 1 + len({*inputs})
