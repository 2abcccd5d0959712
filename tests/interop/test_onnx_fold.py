# SPDX-License-Identifier: Apache-2.0
"""Constant folding of casts: what is folded, to which values, and what is left as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gpucast
from codes import assert_same
from gpucast.core.dtypes import DTYPES, DType
from gpucast.onnx.backend import Cast, CastLike, fold_casts
from onnx_models import ROWS
from tensors import sample

FLOAT, FLOAT16, INT8, FNUZ = ROWS["FLOAT"], ROWS["FLOAT16"], ROWS["INT8"], ROWS["FLOAT8E4M3FNUZ"]
BIG = np.array([1.5, np.inf], np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    outputs: dict[str, DType],
    constants: dict[str, np.ndarray] | None = None,
    inputs: dict[str, DType] | None = None,
    *,
    opset: int = 25,
    ir_version: int = 11,
    shape: tuple[None, ...] = (None,),
    **rest: Any,
) -> onnx.ModelProto:
    values = [
        [helper.make_tensor_value_info(name, row.number, shape) for name, row in side.items()]
        for side in (inputs or {}, outputs)
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in nodes} - {"", "ai.onnx"})]
    graph = helper.make_graph(nodes, "test", *values, initializer=tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **rest)


def cast(x: str, y: str, to: DType, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Cast", [x], [y], to=to.number, **attributes)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return ReferenceEvaluator(model, new_ops=[Cast, CastLike]).run(None, feeds)  # type: ignore[no-any-return]


def folded(model: onnx.ModelProto, **feeds: np.ndarray) -> onnx.ModelProto:
    """The folded model, after the checks that every one must pass."""
    before = model.SerializeToString(deterministic=True)
    result = fold_casts(model)
    assert model.SerializeToString(deterministic=True) == before, "the model itself was changed"
    onnx.checker.check_model(result, full_check=True)
    for got, wanted in zip(run(result, **feeds), run(model, **feeds), strict=True):
        assert_same(got, wanted, ROWS["STRING"] if wanted.dtype.kind in "OU" else None)
    assert fold_casts(result) == result, "folding again changes something"
    return result


def ops(graph: Any) -> list[str]:
    return [node.op_type for node in graph.node]


#: The types with a number in ONNX.
ONNX = [row for row in DTYPES if row.number is not None]


def names(graph: onnx.GraphProto) -> list[str]:
    return sorted(tensor.name for tensor in graph.initializer)


@pytest.mark.parametrize("src", ONNX, ids=str)
def test_every_pair(src: DType) -> None:
    x = np.array(["1", "0", " 1.0 "], object) if src.family == "string" else sample(src, (15,))
    outputs = {f"to_{dst.name}": dst for dst in ONNX}
    model = model_of([cast("x", name, dst) for name, dst in outputs.items()], outputs, {"x": x}, opset=28)
    result = folded(model)
    assert ops(result.graph) == []
    assert names(result.graph) == sorted(outputs)
    for tensor in result.graph.initializer:
        dst = outputs[tensor.name]
        assert tensor.data_type == dst.number
        assert_same(numpy_helper.to_array(tensor), gpucast.cast(x, dst), dst)


@pytest.mark.parametrize(
    "attributes",
    [
        {"value": numpy_helper.from_array(np.array([1.5, -2], np.float16))},
        {"value_float": 2.5},
        {"value_floats": [1.5, 2.5]},
        {"value_int": 300},
        {"value_ints": [1, 300]},
        {"value_string": "7"},
        {"value_strings": ["7", "8.5"]},
    ],
    ids=lambda attributes: next(iter(attributes)),
)
def test_constant_nodes(attributes: dict[str, Any]) -> None:
    constant = helper.make_node("Constant", [], ["c"], **attributes)
    shape = () if next(iter(attributes)) in ("value_float", "value_int", "value_string") else (None,)
    result = folded(model_of([constant, cast("c", "y", INT8)], {"y": INT8}, shape=shape))
    assert (ops(result.graph), names(result.graph)) == ([], ["y"])


def test_rules_follow_the_opset() -> None:
    for opset, attributes, codes in ((23, {}, 0x80), (24, {}, 0x7F), (24, {"saturate": 0}, 0x80)):
        model = model_of([cast("x", "y", FNUZ, **attributes)], {"y": FNUZ}, {"x": BIG}, opset=opset)
        (y,) = folded(model).graph.initializer
        assert numpy_helper.to_array(y).view(np.uint8)[1] == codes
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to="INT8")], {"y": INT8}, {"x": BIG}, opset=1)
    assert names(folded(model).graph) == ["y"]


def test_chains_leave_only_what_is_read() -> None:
    nodes = [cast("x", "a", FLOAT16), cast("a", "b", INT8), helper.make_node("Cast", ["b"], ["y"], to=1, name="last")]
    model = model_of(nodes, {"y": FLOAT}, {"x": BIG[:1]})
    model.graph.value_info.append(helper.make_tensor_value_info("a", 10, [1]))
    result = folded(model)
    assert (ops(result.graph), names(result.graph), len(result.graph.value_info)) == ([], ["y"], 0)


def test_only_what_folded_casts_used_is_removed() -> None:
    constants = dict.fromkeys(("unused", "read", "shown", "quantized", "spent"), BIG)
    nodes = [cast(name, f"{name}_cast", FLOAT16) for name in ("read", "shown", "quantized", "spent")]
    nodes.append(helper.make_node("Neg", ["read"], ["y"]))
    model = model_of(nodes, {"y": FLOAT, "shown": FLOAT}, constants)
    annotation = model.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="quantized")
    kept = ["quantized", "read", "shown", "unused"]
    assert names(folded(model).graph) == sorted([*kept, *(f"{name}_cast" for name in (*kept[:3], "spent"))])


def test_cast_like() -> None:
    def like(target: str) -> onnx.NodeProto:
        return helper.make_node("CastLike", ["x", target], [f"y_{target}"], saturate=0)

    declared = helper.make_node("Relu", ["in"], ["declared"])
    hidden = helper.make_node("Relu", ["in"], ["hidden"])
    constant = helper.make_node("Constant", [], ["constant"], value_int=1)
    targets = {"tensor": FNUZ, "constant": ROWS["INT64"], "in": FLOAT16, "declared": FLOAT16, "x": FLOAT}
    nodes = [declared, hidden, constant, *map(like, [*targets, "hidden"])]
    outputs = {f"y_{name}": row for name, row in {**targets, "hidden": FLOAT16}.items()}
    constants = {"x": BIG, "tensor": np.zeros(1, FNUZ.numpy)}
    model = model_of(nodes, outputs, constants, {"in": FLOAT16})
    model.graph.value_info.append(helper.make_tensor_value_info("declared", FLOAT16.number, [1]))
    result = folded(model, **{"in": np.zeros(1, np.float16)})
    # Of "hidden" the model does not tell the type.
    assert ops(result.graph) == ["Relu", "Relu", "CastLike"]
    assert names(result.graph) == sorted(["x", *(f"y_{name}" for name in targets)])


def branch(name: str, nodes: list[onnx.NodeProto], y: str, **constants: np.ndarray) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(y, 10, [None])], initializer=tensors)


def test_subgraphs() -> None:
    inner = helper.make_node(
        "If", ["test"], ["e"],
        then_branch=branch("then2", [cast("outer", "e1", FLOAT16)], "e1"),
        else_branch=branch("else2", [cast("kept", "e2", FLOAT16)], "e2"),
    )  # fmt: skip
    node = helper.make_node(
        "If", ["test"], ["y"],
        then_branch=branch("then", [cast("own", "a", FLOAT16), helper.make_node("Abs", ["a"], ["t"])], "t", own=BIG),
        else_branch=branch("else", [inner], "e"),
    )  # fmt: skip
    constants = {"outer": -BIG, "kept": 2 * BIG}
    model = model_of([node], {"y": FLOAT16, "kept": FLOAT}, constants, {"test": ROWS["BOOL"]})
    for test in (True, False):
        result = folded(model, test=np.array([test]))
    outer = {attribute.name: attribute.g for attribute in result.graph.node[0].attribute}
    assert names(result.graph) == ["kept"]
    assert (ops(outer["then_branch"]), names(outer["then_branch"])) == (["Abs"], ["a"])
    nested = {attribute.name: attribute.g for attribute in outer["else_branch"].node[0].attribute}
    assert [(ops(graph), names(graph)) for graph in nested.values()] == [([], ["e2"]), ([], ["e1"])]
    session = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_same(session.run(["y"], {"test": np.array([False])})[0], np.float16(2 * BIG))


def test_a_subgraphs_own_input_is_no_constant() -> None:
    def value(name: str, row: DType, *shape: None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, row.number, shape)

    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["going"]), cast("state", "wide", FLOAT), cast("wide", "next", FLOAT16)],
        "body",
        [value("i", ROWS["INT64"]), value("go", ROWS["BOOL"]), value("state", FLOAT16, None)],
        [value("going", ROWS["BOOL"]), value("next", FLOAT16, None)],
    )
    loop = helper.make_node("Loop", ["count", "", "start"], ["y"], body=body)
    constants = {"count": np.array(2), "start": np.float16(BIG)}
    result = folded(model_of([loop], {"y": FLOAT16}, constants))
    assert ops(result.graph.node[0].attribute[0].g) == ["Identity", "Cast", "Cast"]
    # The name means something else in there.
    body.input[2].name = body.node[1].input[0] = "count"
    assert ops(fold_casts(model_of([loop], {"y": FLOAT16}, constants)).graph.node[0].attribute[0].g)[1:] == ["Cast"] * 2


def test_initializers_that_are_inputs_are_defaults() -> None:
    model = model_of([cast("x", "y", FLOAT16)], {"y": FLOAT16}, {"x": BIG}, {"x": FLOAT})
    assert folded(model, x=-BIG) == model


def test_models_whose_initializers_must_be_inputs_get_constant_nodes() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(BIG))
    nodes = [constant, cast("c", "a", FLOAT16), cast("a", "y", FLOAT)]
    result = folded(model_of(nodes, {"y": FLOAT}, opset=9, ir_version=3))
    assert (ops(result.graph), names(result.graph)) == (["Constant"], [])


def test_functions() -> None:
    def made(*nodes: onnx.NodeProto) -> onnx.FunctionProto:
        constant = helper.make_node("Constant", [], ["c"], value_floats=[1.5, 1e6])
        nodes = (constant, *nodes, helper.make_node("Add", ["x", "f"], ["y"]))
        return helper.make_function("local", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 23)], ["clamp"])

    call = helper.make_node("F", ["x"], ["y"], domain="local", clamp=0)
    narrow = cast("c", "n", FNUZ)
    model = model_of([call], {"y": FLOAT}, {}, {"x": FLOAT}, opset=23, functions=[made(narrow, cast("n", "f", FLOAT))])
    result = folded(model, x=BIG[:1])
    assert ops(result.functions[0]) == ["Constant", "Add"]
    # An attribute that the caller gives is not known.
    narrow.attribute.append(onnx.AttributeProto(name="saturate", type=onnx.AttributeProto.INT, ref_attr_name="clamp"))
    model = model_of([call], {"y": FLOAT}, {}, {"x": FLOAT}, opset=23, functions=[made(narrow, cast("n", "f", FLOAT))])
    assert fold_casts(model) == model


def test_casts_that_fail_are_left() -> None:
    text = np.array(["1.5", "x"], object)
    nodes = [cast("text", "y", FLOAT), cast("far", "z", INT8)]
    model = model_of(nodes, {"y": FLOAT, "z": INT8}, {"text": text, "far": np.array(["300"], object)})
    assert fold_casts(model) == model
    newer = model_of([cast("x", "y", ROWS["INT4"])], {"y": ROWS["INT4"]}, {"x": BIG}, opset=19)
    assert fold_casts(newer) == newer
    undecodable = model_of([cast("text", "y", FLOAT)], {"y": FLOAT}, {"text": text})
    undecodable.graph.initializer[0].string_data[0] = b"\xff"
    assert fold_casts(undecodable) == undecodable


def test_external_and_sparse_constants_are_left() -> None:
    external = model_of([cast("x", "y", FLOAT16)], {"y": FLOAT16}, {"x": BIG})
    onnx.external_data_helper.set_external_data(external.graph.initializer[0], "elsewhere.bin")
    external.graph.initializer[0].ClearField("raw_data")
    assert fold_casts(external) == external
    values, indices = numpy_helper.from_array(BIG[:1], "v"), numpy_helper.from_array(np.array([1]), "i")
    sparse = helper.make_node("Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(values, indices, [4]))
    model = model_of([sparse, cast("c", "y", FLOAT16)], {"y": FLOAT16})
    assert fold_casts(model) == model


def test_models_without_casts_are_copied() -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], {"y": FLOAT}, {"x": BIG, "unused": BIG})
    copy = fold_casts(model)
    assert copy == model and copy is not model
    other = helper.make_node("Cast", ["x"], ["y"], domain="elsewhere", to=10)
    foreign = model_of([other], {"y": FLOAT16}, {"x": BIG})
    assert fold_casts(foreign) == foreign
    del foreign.opset_import[0]
    assert fold_casts(foreign) == foreign


def test_bad_models() -> None:
    with pytest.raises(TypeError, match="^fold_casts: model is a bytes; expected an onnx.ModelProto"):
        fold_casts(b"")
    model = model_of([cast("x", "y", FLOAT16)], {"y": FLOAT16}, {"x": BIG}, opset=99)
    with pytest.raises(ValueError, match="^fold_casts: opset=99 is not supported; expected 1 to 28"):
        fold_casts(model)
    model = model_of([cast("x", "y", FLOAT16)], {"y": FLOAT16}, {"x": BIG})
    model.training_info.add()
    with pytest.raises(ValueError, match="^fold_casts: the model has training_info"):
        fold_casts(model)
