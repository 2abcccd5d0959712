# SPDX-License-Identifier: Apache-2.0
"""Of an ONNX model only weights are cast: constants that enter known operators as weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpucast
from conversions import convert, failure
from gpucast import files
from gpucast.cli import main

pytestmark = pytest.mark.usefixtures("folder")

W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
V = np.array([0.1, 0.2, 0.3, 0.7], np.float32)
#: Tables of positions: sines, cosines, both, scaled ones, behind a row for padding, and centers of cells.
ANGLES = np.outer(np.arange(64), 1e4 ** -np.linspace(0, 0.9, 8)).astype(np.float32)
WAVES = {
    "sines": np.sin(ANGLES),
    "cosines": np.cos(ANGLES),
    "both": np.concatenate([np.cos(ANGLES), np.sin(ANGLES)], 1),
    "scaled ones": (1.3 * np.cos(ANGLES)).astype(np.float16).astype(np.float32),
    "positions after padding": np.concatenate([np.zeros((2, 8), np.float32), np.sin(ANGLES)[2:]]),
    "cells": np.stack([np.arange(64) * 8 + 4, np.arange(64) * 4 + 2], 1).astype(np.float32),
}
MASK = np.triu(np.full((4, 4), np.finfo(np.float32).min), 1)
ZEROTH, FIRST = np.array([0]), np.array([1])
ONE, TENTH = np.array([1.3], np.float32), np.float32(0.1)


def model(nodes: list[Any], opset: int = 23, shape: Any = (4, 4), result: Any = None, **constants: Any) -> None:
    """A model of x with these nodes, the last of which gives y."""
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", result))
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "test", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets[:1]))
    onnx.save(proto, "in.onnx")


def node(kind: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(
        kind, ["" if name == "-" else name for name in inputs.split()], output.split(), **attributes
    )


def run(path: str, x: Any = W) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def half() -> dict[str, str]:
    """The types of the constants of the model as FLOAT16, by the names that they had. None where nothing was cast."""
    assert convert("in.onnx", "out.onnx", "--to", "FLOAT16", "--allow-loss", "--verify", "all") == 0
    proto = onnx.load("out.onnx")
    found = {one.name.removesuffix(".float16"): one.data_type for one in proto.graph.initializer}
    found |= {one.output[0]: one.attribute[0].t.data_type for one in proto.graph.node if one.op_type == "Constant"}
    return {name: TensorProto.DataType.Name(kind) for name, kind in found.items()}


def test_the_scales_of_a_resize_stay() -> None:
    """onnxconverter-common 207: 10 x 1.3 gave 12 rows and not 13."""
    scales = np.array([1, 1, 1.3, 1.3], np.float32)
    model(
        [node("MatMul", "x w", "h"), node("Resize", "h - s", mode="nearest")],
        shape=(1, 1, 10, 10),
        s=scales,
        w=np.eye(10, dtype=np.float32),
    )
    assert half() == {"s": "FLOAT", "w": "FLOAT16"}
    assert run("out.onnx", np.ones((1, 1, 10, 10), np.float32)).shape == (1, 1, 13, 13)


#: What is no weight, as c: nodes that take it, and other constants of theirs. `w` is a weight beside it.
NO_WEIGHTS: dict[str, tuple[list[Any], Mapping[str, Any]]] = {
    "epsilon": ([node("Add", "h c")], {"c": ONE}),
    "scalar factor": ([node("Mul", "h c")], {"c": TENTH}),
    "divisor": ([node("Div", "h c")], {"c": V}),
    "exponent": ([node("Pow", "h c")], {"c": V}),
    "limit": ([node("Clip", "h c")], {"c": TENTH}),
    "upper limit": ([node("Clip", "h - c")], {"c": TENTH}),
    "range": ([node("Range", "c e d", "r"), node("Add", "h r")], {"c": 0 * TENTH, "e": 40 * TENTH, "d": 10 * TENTH}),
    "scales that are computed": (
        [node("Mul", "c d", "s"), node("Unsqueeze", "h a", "u"), node("Resize", "u - s")],
        {"c": V * 10, "d": V * 10, "a": np.array([0, 1])},
    ),
    "sizes that are computed": (
        [node("Shape", "h", "s"), node("Cast", "s", "f", to=1), node("Mul", "f c", "g"), node("Floor", "g", "i"),
         node("Cast", "i", "j", to=7), node("Expand", "h j")], {"c": np.array([1.3, 1.3], np.float32)},
    ),
    "mask": ([node("Where", "m h c")], {"c": V, "m": np.array([True, False, True, True])}),
    "pad": ([node("Pad", "h p c")], {"p": np.zeros(4, np.int64), "c": TENTH}),
    "comparison": ([node("Greater", "h c", "b"), node("Cast", "b", "y", to=1)], {"c": V}),
    "maximum": ([node("Max", "h c")], {"c": V}),
    "variance": ([node("BatchNormalization", "h s b m c")], {"s": V, "b": V, "m": V, "c": V}),
    "loss": ([node("IsInf", "c", "b"), node("Cast", "b", "f", to=1), node("Add", "h f")], {"c": V}),
    "an output too": ([node("Identity", "c")], {"c": V}),
    "through a shape": ([node("Reshape", "c s", "r"), node("Pow", "h r")], {"c": V, "s": np.array([1, 4])}),
    "two uses": ([node("MatMul", "h c", "i"), node("Pow", "i c")], {"c": W}),
    "another domain": ([node("Mystery", "h c", domain="com.microsoft")], {"c": W}),
    # Rotary positions: frequencies times positions, as transformers and others write it.
    "frequencies on the left": ([node("MatMul", "c h", "f"), node("Cos", "f")], {"c": W}),
    "a matrix on the left": ([node("MatMul", "c h")], {"c": W}),
    "an outer product": ([node("Slice", "h s e a", "p"), node("MatMul", "p c")],
                         {"c": V[None], "s": ZEROTH, "e": FIRST, "a": FIRST}),
    "a matrix times a vector": ([node("MatMul", "h c")], {"c": V}),
    "frequencies that are added up": ([node("MatMul", "h c", "f"), node("Mul", "f n", "g"), node("Sin", "g")],
                                      {"c": W, "n": np.float32(6.28)}),
    "frequencies through Concat": ([node("MatMul", "h c", "f"), node("Concat", "f f", "g", axis=1), node("Cos", "g")],
                                   {"c": W}),
    "frequencies of an Einsum": ([node("Einsum", "h c", equation="ij,k->ijk")], {"c": V}),
    "frequencies of positions": ([node("Mul", "h c", "f"), node("Sin", "f")], {"c": V}),
    "a factor of angles": ([node("Mul", "h c", "f"), node("Sin", "f", "s"), node("Add", "h s")], {"c": V}),
    # Masks, positions and grids.
    "a mask of scores": (
        [node("Transpose", "h", "t"), node("MatMul", "h t", "s"), node("Add", "s c")], {"c": MASK[:1]},
    ),
    "a square mask": ([node("Transpose", "h", "t"), node("MatMul", "h t", "s"), node("Add", "s c")], {"c": MASK}),
    "a factor of scores": ([node("Transpose", "h", "t"), node("MatMul", "h t", "s"), node("Mul", "s c")], {"c": V}),
    "positions that are added": ([node("Add", "h c")], {"c": W}),
    "a part of positions": ([node("Slice", "c s e", "p"), node("Add", "h p")],
                            {"c": np.tile(W, (2, 1)), "s": ZEROTH, "e": FIRST * 4}),
    "a mean of pixels": ([node("Add", "x c", "m"), node("Add", "h m")], {"c": V}),
    "a deviation of pixels": ([node("Mul", "x c", "m"), node("Add", "h m")], {"c": V}),
    "a mean": ([node("Sub", "h c")], {"c": V}),
    "a factor after Relu": ([node("Relu", "h", "r"), node("Mul", "r c")], {"c": V}),
    "a token": ([node("Concat", "h c", axis=0)], {"c": W}),
    **{f"a table of {name}": ([node("ArgMax", "h", "i", axis=1, keepdims=0), node("Gather", "c i")], {"c": table})
       for name, table in WAVES.items()},
    "a table with rows of its own": ([node("ArgMax", "h", "i", axis=1, keepdims=0), node("Gather", "c i", axis=1)],
                                     {"c": W}),
    "boxes": ([node("TopK", "h k", "v i"), node("Gather", "c i", "g"), node("ReduceSum", "g n", "y", keepdims=0)],
              {"c": W, "k": FIRST, "n": FIRST * 2}),
    "matrices for experts": ([node("ArgMax", "h", "i", axis=1, keepdims=0), node("Gather", "c i", "g"),
                              node("MatMul", "h g")], {"c": np.stack([W] * 4)}),
    "keys": ([node("Attention", "h3 c v3", "y")], {"c": W[None]}),
    "a mask of Attention": ([node("Attention", "h3 h3 v3 c", "y")], {"c": MASK}),
    "RotaryEmbedding": ([node("RotaryEmbedding", "h3 i c c", domain="com.microsoft")],
                        {"c": W[:, :2], "i": np.zeros((1, 4), np.int64)}),
}  # fmt: skip


#: Nodes that onnxruntime does not run so.
NOT_RUN = ("Mystery", "RotaryEmbedding", "BatchNormalization", "TopK", "Attention", "Expand")
#: Those that may be weights all the same, as far as the graph says.
JUDGED = [
    name
    for name, (_, held) in NO_WEIGHTS.items()
    if np.asarray(held["c"]).size > 1 and name not in ("range", "an output too")
]


@pytest.mark.parametrize("case", NO_WEIGHTS)
@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "Constant"])
def test_what_is_no_weight_stays_bit_for_bit(case: str, constant: bool, capsys: Any) -> None:
    nodes, constants = NO_WEIGHTS[case]
    c, more = np.asarray(constants["c"]), {"d1": FIRST * 0}
    before = [node("MatMul", "x w", "h"), node("Unsqueeze", "h d1", "h3"), node("Identity", "h3", "v3")]
    if constant:
        before.append(helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(c)))
    model([*before, *nodes], w=W, **more, **{name: x for name, x in constants.items() if name != "c" or not constant})
    assert main(["convert", "in.onnx", "out.onnx", "--to", "FLOAT16", "--allow-loss"]) == 0
    said = capsys.readouterr().out
    proto = onnx.load("out.onnx")
    found = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    assert found.pop("w.float16").dtype == np.float16
    if all(one.op_type not in NOT_RUN for one in nodes):
        np.testing.assert_allclose(run("out.onnx"), run("in.onnx"), rtol=1e-2, atol=1e-2)
    kept = [one.attribute[0].t for one in proto.graph.node if one.op_type == "Constant"]
    if (constant and c.size == 1) or kept:
        # An output of the graph stays where it is.
        assert [numpy_helper.to_array(one).tobytes() for one in kept] == [c.tobytes()]
    else:
        assert found["c"].tobytes() == c.tobytes() and "'c' (FLOAT)" in said
        (line,) = (line for line in said.splitlines() if "'c' (FLOAT)" in line)
        # One number is none; several are cast on demand.
        assert ("--as-weights casts" in line) == (case in JUDGED), line
        assert convert("in.onnx", "out.onnx", "--to", "FLOAT16", "--allow-loss", "--as-weights", "c") == 0
        kinds = {one.name: one.data_type for one in onnx.load("out.onnx").graph.initializer}
        assert TensorProto.FLOAT16 in (kinds.get("c.float16"), kinds.get("f.float16"), kinds.get("c"))


def norm(given: str, made: str) -> list[Any]:
    """LayerNormalization in parts, without weights."""
    return [
        node("ReduceMean", given, "mean", axes=[-1]), node("Sub", f"{given} mean", "d"), node("Mul", "d d", "d2"),
        node("ReduceMean", "d2", "var", axes=[-1]), node("Add", "var eps", "v2"), node("Sqrt", "v2", "sd"),
        node("Div", "d sd", made),
    ]  # fmt: skip


#: Weights, as c.
WEIGHTS: dict[str, tuple[list[Any], Any]] = {
    "right": ([node("MatMul", "x c")], W),
    "one result": ([node("MatMul", "x c")], W[:, :1]),
    "a bias": ([node("MatMul", "x w", "h"), node("Add", "h c")], V),
    "a bias on the left": ([node("MatMul", "x w", "h"), node("Add", "c h")], V),
    "a bias behind a shape": ([node("MatMul", "x w", "h"), node("Unsqueeze", "h a", "u"), node("Add", "u c")], V),
    "a bias of an Einsum": ([node("Einsum", "x w", "h", equation="ij,kj->ik"), node("Add", "h c")], V),
    "a bias of a Conv": (
        [node("Unsqueeze", "x a", "u"), node("Conv", "u k", "h"), node("Add", "h c")], V[:, None],
    ),
    "a factor": ([node("Gemm", "x w v", "h"), node("Mul", "c h")], V),
    "a factor and a bias": ([node("MatMul", "x w", "h"), node("Mul", "h v", "i"), node("Add", "i c")], V),
    "a factor of a norm in parts": ([*norm("x", "n"), node("Mul", "n c")], V),
    "a bias of a norm in parts": ([*norm("x", "n"), node("Mul", "n v", "m"), node("Add", "m c")], V),
    "a factor of a norm by a reciprocal": (
        [node("ReduceL2", "x", "l", axes=[-1]), node("Reciprocal", "l", "r"), node("Mul", "x r", "n"),
         node("Mul", "n c")], V,
    ),
    "a factor of LpNormalization": ([node("LpNormalization", "x", "n"), node("Mul", "n c")], V),
    "Gemm": ([node("Gemm", "x w c")], V),
    "transposed": ([node("Transpose", "c", "t"), node("MatMul", "x t")], W),
    "cast": ([node("Cast", "c", "t", to=1), node("MatMul", "x t")], W),
    "two uses": ([node("MatMul", "x c", "h"), node("Gemm", "h c")], W),
    "a table": ([node("ArgMax", "x", "i", axis=1, keepdims=0), node("Gather", "c i")], W),
    "a longer table": (
        [node("ArgMax", "x", "i", axis=1, keepdims=0), node("Gather", "c i")],
        np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32),
    ),
    "LayerNormalization": ([node("LayerNormalization", "x c v")], V),
    "PRelu": ([node("PRelu", "x c")], V),
    "Einsum": ([node("Einsum", "x c", equation="ij,jk->ik")], W),
    "BatchNormalization": ([node("BatchNormalization", "x c v v v")], V),
    "part": ([node("Slice", "c s e", "p"), node("MatMul", "x p")], np.concatenate([W, W])),
    "Conv": ([node("Unsqueeze", "x a", "u"), node("Conv", "u c")], W.reshape(4, 4, 1)),
    "SkipLayerNormalization": ([node("SkipLayerNormalization", "x x c", domain="com.microsoft")], V),
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS)
@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "Constant"])
def test_weights_are_cast_wherever_they_stand(case: str, constant: bool) -> None:
    nodes, c = WEIGHTS[case]
    more = {"w": W, "v": V, "s": np.array([0]), "e": np.array([4]), "a": np.array([0]), "eps": TENTH}
    more |= {"k": W.reshape(4, 4, 1)}
    held = more if constant else {"c": c, **more}
    first = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(c))] if constant else []
    # Reductions have had their axes as an input since opset 18.
    model([*first, *nodes], opset=17 if any("Reduce" in one.op_type for one in nodes) else 23, **held)
    proto = onnx.load("in.onnx")
    assert convert("in.onnx", "out.onnx", "--to", "FLOAT16", "--verify", "all") == 0
    kinds = {one.name.split(".")[0]: one.data_type for one in onnx.load("out.onnx").graph.initializer}
    # One that only a Cast to FLOAT takes has the name of its result.
    assert kinds.get("c", kinds.get("t")) == TensorProto.FLOAT16
    if "SkipLayer" not in case:
        np.testing.assert_allclose(run("out.onnx"), run("in.onnx"), rtol=1e-2, atol=1e-2)
    assert proto.graph.node


#: Types of codes, and values of --scale, of models that `--style qdq` writes.
QDQ = [
    *((to, scale) for to in ("INT8", "UINT8", "INT4", "UINT4") for scale in ("per-tensor", "per-channel", "block")),
    *((to, scale) for to in ("FLOAT8E4M3FN", "FLOAT8E5M2") for scale in ("per-tensor", "per-channel")),
]


@pytest.mark.parametrize(("to", "scale"), QDQ)
def test_codes_and_scales_stay_whole(to: str, scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    w = np.tile(W, (32, 1)).T.copy()
    model([node("MatMul", "x w", "h"), node("Add", "h b")], w=w, b=np.tile(V, 32))
    assert convert("in.onnx", "q.onnx", "--to", to, "--scale", scale) == 0
    before = onnx.load("q.onnx")
    assert main(["convert", "q.onnx", "out.onnx", "--to", "BFLOAT16"]) == 0
    said = capsys.readouterr().out
    assert "1 tensor cast to BFLOAT16" in said
    (line,) = (
        line for line in said.splitlines() if "DequantizeLinear takes codes and scales, which stay whole" in line
    )
    assert "'w_scale' (FLOAT)" in line and "--as-weights" not in line
    names = ("w_quantized", "w_scale", "w_zero_point")
    kept = [
        {one.name: one for one in proto.graph.initializer if one.name in names}
        for proto in (before, onnx.load("out.onnx"))
    ]
    assert kept[0] == kept[1] and {"w_quantized", "w_scale"} <= kept[0].keys()
    assert main(["convert", "q.onnx", "same.onnx", "--to", "FLOAT"]) == 0
    assert "0 tensors cast to FLOAT" in capsys.readouterr().out


def test_a_model_of_codes_alone_has_nothing_to_cast(capsys: pytest.CaptureFixture[str]) -> None:
    model([node("DequantizeLinear", "c s", "w"), node("MatMul", "x w")], c=np.ones((4, 4), np.int8), s=TENTH)
    said = failure(capsys, "in.onnx", "out.onnx", "--to", "BFLOAT16")
    assert "DequantizeLinear takes codes and scales, which stay whole" in said


def test_initializers_are_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    model([node("MatMul", "x w")], w=W)
    assert "--drop is for tensors of checkpoints" in failure(
        capsys, "in.onnx", "out.onnx", "--to", "FLOAT16", "--drop", "w"
    )


def test_a_name_that_is_chosen_is_cast_all_the_same() -> None:
    model([node("MatMul", "x w", "h"), node("Mul", "h c")], w=W, c=ONE)
    assert half() == {"w": "FLOAT16", "c": "FLOAT"}
    for option in (["--rule", "c=FLOAT16"], ["--as-weights", "c"]):
        assert convert("in.onnx", "out.safetensors", "--to", "FLOAT16", *option) == 0
        assert {x.dtype.name for x in files.load("out.safetensors").values()} == {"float16"}


def branch(c: Any, constant: bool, kind: str, inner: list[Any] | None = None, name: str = "c") -> Any:
    """A graph of h, which gives t from a constant of its own."""
    nodes = [helper.make_node(kind, ["h", name], ["t" if inner is None else "u"]), *(inner or [])]
    held = [numpy_helper.from_array(c, name)]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], [name], value=held.pop()))
    return helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, (4, 4))], held)


@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "Constant"])
def test_weights_within_subgraphs_are_cast_and_others_are_named(constant: bool, capsys: Any) -> None:
    """Branches have constants of one name: a weight, a mask, and a weight a level deeper."""
    deep = {"then_branch": branch(2 * W, constant, "MatMul"), "else_branch": branch(MASK, constant, "Add")}
    second = branch(V, constant, "Pow", [node("If", "yes", "d", **deep), node("Add", "u d", "t")], "e")
    branches = {"then_branch": branch(3 * W, constant, "MatMul"), "else_branch": second}
    constants = {"yes": np.array(True), "no": np.array(False)}
    model(
        [node("MatMul", "x w", "g"), node("Abs", "g", "h"), node("If", "no", **branches)],
        result=(4, 4),
        w=W,
        **constants,
    )
    onnx.checker.check_model("in.onnx", full_check=True)
    before = run("in.onnx")
    assert main(["convert", "in.onnx", "out.onnx", "--to", "FLOAT16", "--verify", "all"]) == 0
    said = capsys.readouterr().out
    onnx.checker.check_model("out.onnx", full_check=True)
    np.testing.assert_allclose(run("out.onnx"), before, rtol=1e-2, atol=1e-2)
    held = {one.name: numpy_helper.to_array(one) for one in onnx.load("out.onnx").graph.initializer}
    halves = sorted(float(np.abs(x).max()) for x in held.values() if x.dtype == np.float16)
    assert halves == pytest.approx(sorted(float(np.abs(n * W).max()) for n in (1, 2, 3)), rel=1e-3)
    assert "3 tensors cast" in said
    for reason in ("Pow takes no weight there", "Add takes it, and it is no bias or factor of a layer"):
        (line,) = (line for line in said.splitlines() if reason in line)
        assert ("'e'" if "Pow" in reason else "'c") in line


@pytest.mark.parametrize("opset", [23, 13])
def test_functions_of_a_model_are_looked_into(opset: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What has another opset than the model cannot be put in place of its calls."""
    bias = node("Constant", "", "b", value=numpy_helper.from_array(V, "b"))
    body = [bias, node("MatMul", "u w", "m"), node("Add", "m b", "v")]
    layer = helper.make_function("local", "Layer", ["u", "w"], ["v"], body, [helper.make_opsetid("", opset)])
    model([node("Layer", "x w", "h", domain="local"), node("Gemm", "h g")], w=W, g=W)
    proto = onnx.load("in.onnx")
    proto.functions.append(layer)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(proto, "in.onnx")
    if opset != 23:
        assert "function 'Layer' follows another opset" in failure(capsys, "in.onnx", "out.onnx", "--to", "FLOAT16")
        return
    assert set(half().values()) == {"FLOAT16"} and len(half()) == 3
    x = W.astype(np.float16).astype(np.float32)
    assert np.allclose(run("out.onnx"), (W @ x + V.astype(np.float16)) @ x, rtol=1e-5)
    # The values have the names that they had, whatever the types are.
    assert main(["diff", "in.onnx", "out.onnx"]) == 1
    assert "3 of 3 tensors differ" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16"])
@pytest.mark.parametrize(
    ("scale", "format", "axis"),
    [("per-tensor", "int8_tensor", -1), ("per-channel", "int8_axis", 0), ("block", "uint8_zp_128", -1)],
)
def test_a_model_and_its_codes_are_compared(
    to: str, scale: str, format: str, axis: int, capsys: pytest.CaptureFixture[str]
) -> None:
    w = gpucast.cast(np.random.default_rng(2).standard_normal((6, 300)).astype(np.float32), to)
    model(
        [node("Cast", "w", "c", to=TensorProto.FLOAT)] * (to != "FLOAT") + [node("MatMul", f"x {'wc'[to != 'FLOAT']}")],
        w=w,
    )
    assert convert("in.onnx", "out.onnx", "--to", format.split("_", maxsplit=1)[0], "--scale", scale) == 0
    capsys.readouterr()
    assert main(["diff", "in.onnx", "out.onnx", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    q = gpucast.quantize(w, format, axis=axis)
    gap = np.abs(np.asarray(gpucast.cast(w, "DOUBLE")) - q.dequantize("DOUBLE"))
    (row,) = found["tensors"]
    assert row["largest"] == gap.max() > 0 and found["only_in"] == {"in.onnx": [], "out.onnx": []}
    assert row["name"] == "w" or to != "FLOAT"


@pytest.mark.parametrize(("axis", "block"), [(0, 0), (1, 0), (2, 0), (0, 2), (1, 3), (2, 2)])
def test_codes_along_any_axis_are_compared(axis: int, block: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As onnxruntime's quantizer writes them, which names results after the weight."""
    rng, shape = np.random.default_rng(3), (4, 6, 5)
    codes, zero = rng.integers(-128, 127, shape, np.int8), np.int8(3)
    grid = [-(-n // block) if at == axis else n for at, n in enumerate(shape)] if block else [shape[axis]]
    scales = rng.uniform(1, 2, grid).astype(np.float32)
    wide = (
        np.repeat(scales, block, axis).take(range(shape[axis]), axis)
        if block
        else np.moveaxis(np.broadcast_to(scales, np.moveaxis(np.empty(shape), axis, -1).shape), -1, axis)
    )
    linear = node("DequantizeLinear", "w_quantized s z", "w_DequantizeLinear_Output", axis=axis, block_size=block)
    numbers = (codes.astype(np.float64) - 3) * wide
    for path, change in (("a.safetensors", 0), ("b.safetensors", 1)):
        files.save(path, {"w": numbers + change * (np.arange(5) == 4)})
    model([linear, node("Add", "x w_DequantizeLinear_Output")], w_quantized=codes, s=scales, z=np.full(grid, zero))
    assert main(["diff", "a.safetensors", "in.onnx"]) == 0
    assert main(["diff", "in.onnx", "b.safetensors"]) == 1
    assert " 20.00%" in capsys.readouterr().out
