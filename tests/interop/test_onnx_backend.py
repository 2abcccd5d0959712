# SPDX-License-Identifier: Apache-2.0
"""The ONNX backend: whole models, functions and subgraphs, inputs and outputs, devices, bad models."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import helper
from onnx.numpy_helper import to_array
from onnx.reference import ReferenceEvaluator

import exact
import gpucast
import gpucast.onnx.backend as interop
from codes import codes_of
from gpucast.core import rule
from gpucast.core.dtypes import DTYPES, DType
from gpucast.core.rule import CAST_VERSIONS, CASTLIKE_VERSIONS, Options
from gpucast.onnx.backend import Backend, Cast, CastLike
from onnx_models import ROWS, cast_like_model, cast_model, make_model, run_operator, zeros

FLOAT, FLOAT16, BOOL, FNUZ, INT4 = (ROWS[name] for name in ("FLOAT", "FLOAT16", "BOOL", "FLOAT8E4M3FNUZ", "INT4"))
INFINITY = np.array([np.inf], np.float32)


def codes(x: Any) -> list[int]:
    return x.view(np.uint8).tolist()  # type: ignore[no-any-return]


def test_other_operators_run_beside_cast() -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=INT4.number),
        helper.make_node("CastLike", ["x", "y"], ["z"]),
    ]
    model = make_model(nodes, 25, {"x": FLOAT}, {"y": INT4, "z": INT4})
    y, z = Backend.run_model(model, [np.array([1.75, 5.0], np.float32)])
    assert (codes(y), codes(z)) == ([3, 10], [1, 5])


def if_model(opset: int) -> onnx.ModelProto:
    """x cast to e4m3fnuz in the one branch, to its saturate=0 form in the other."""
    branches = {}
    for name, attributes in (("then_branch", {}), ("else_branch", {"saturate": 0})):
        node = helper.make_node("Cast", ["x"], [name], to=FNUZ.number, **attributes)
        branches[name] = helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, FNUZ.number, [None])])
    node = helper.make_node("If", ["test"], ["y"], **branches)
    return make_model([node], opset, {"test": BOOL, "x": FLOAT}, {"y": FNUZ})


@pytest.mark.parametrize(("opset", "test", "code"), [(24, True, 0x7F), (23, True, 0x80), (24, False, 0x80)])
def test_cast_in_a_subgraph(opset: int, test: bool, code: int) -> None:
    inputs = {"test": np.array([test]), "x": INFINITY}
    evaluator = ReferenceEvaluator(if_model(opset), new_ops=[Cast, CastLike])
    assert codes(evaluator.run(None, inputs)[0]) == codes(Backend.run_model(if_model(opset), inputs)[0]) == [code]


def function_model(opset: int, function_opset: int, **attributes: int) -> onnx.ModelProto:
    """A Cast in a function of the model, with its saturate as the function's attribute."""
    node = helper.make_node("Cast", ["x"], ["y"], to=FNUZ.number)
    node.attribute.append(onnx.AttributeProto(name="saturate", type=onnx.AttributeProto.INT, ref_attr_name="clamp"))
    opsets = [helper.make_opsetid("", function_opset)]
    function = helper.make_function("local", "Clamp", ["x"], ["y"], [node], opsets, ["clamp"])
    call = helper.make_node("Clamp", ["x"], ["y"], domain="local", **attributes)
    return make_model([call], opset, {"x": FLOAT}, {"y": FNUZ}, functions=[function])


@pytest.mark.parametrize(("opset", "clamp", "code"), [(24, 1, 0x7F), (24, 2, 0x7F), (24, 0, 0x80), (23, 1, 0x80)])
def test_cast_in_a_function_of_the_model(opset: int, clamp: int, code: int) -> None:
    (y,) = Backend.run_model(function_model(opset, opset, clamp=clamp), [INFINITY])
    assert codes(y) == [code]


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([], ValueError, "got 0 inputs; the model takes 1: x"),
        ([zeros(FLOAT)] * 2, ValueError, "got 2 inputs; the model takes 1: x"),
        ({"y": zeros(FLOAT)}, ValueError, "no value for x; got y"),
        ({1: zeros(FLOAT)}, ValueError, "no value for x; got 1"),
        (zeros(FLOAT), TypeError, "inputs is a ndarray; expected a sequence or a mapping"),
        ([zeros(FLOAT16)], ValueError, "input 'x' is FLOAT16; the model declares FLOAT"),
    ],
)
def test_bad_inputs(inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^run: {message}"):
        Backend.run_model(cast_model(FLOAT, FLOAT16, 28), inputs)


def declared(model: onnx.ModelProto, number: int) -> onnx.ModelProto:
    model.graph.output[0].type.tensor_type.elem_type = number
    return model


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (cast_model(FLOAT, FLOAT16, 18, saturate=1), onnx.checker.ValidationError),
        (cast_model(FLOAT, FLOAT16, 1, to=10), onnx.checker.ValidationError),
        (cast_model(FLOAT, FLOAT16, 6, to="FLOAT16"), onnx.checker.ValidationError),
        (cast_model(FLOAT, FLOAT16, 28, saturate=1.0), onnx.checker.ValidationError),
        (cast_model(FLOAT, FNUZ, 18), onnx.shape_inference.InferenceError),
        (cast_model(FNUZ, FLOAT, 18), onnx.shape_inference.InferenceError),
        (declared(cast_model(FLOAT, FLOAT16, 28, to=14), 14), onnx.shape_inference.InferenceError),
        (function_model(24, 23, clamp=1), onnx.checker.ValidationError),
        (cast_like_model(FLOAT, FLOAT16, 14), onnx.checker.ValidationError),
    ],
)
def test_bad_models_are_not_prepared(model: onnx.ModelProto, error: type[Exception]) -> None:
    with pytest.raises(error):
        Backend.prepare(model)
    assert not Backend.is_compatible(model)


def test_bad_models_that_onnx_does_not_see_fail_when_run() -> None:
    with pytest.raises(TypeError, match=r"^Cast: to=99 is not a dtype"):
        Backend.run_model(cast_model(FLOAT, FLOAT16, 28, to=99), [zeros(FLOAT)])
    with pytest.raises(ValueError, match=r"^run: output 'y' is FLOAT16; the model declares DOUBLE"):
        Backend.run_model(declared(cast_model(FLOAT, FLOAT16, 28), 11), [zeros(FLOAT)])


def test_devices() -> None:
    model = cast_model(FLOAT, FLOAT16, 28)
    assert Backend.supports_device("CPU")
    assert Backend.is_compatible(model)
    for unknown in ("TPU", "cuda", "CUDA:x", "CUDA:", "CUDA:1 ", "CUDA:-1"):
        assert not Backend.supports_device(unknown)
        with pytest.raises(ValueError, match=f"^Backend: device='{unknown}' is not known; expected 'CPU', 'CUDA' or"):
            Backend.prepare(model, unknown)
    try:
        gpucast.cast(zeros(FLOAT), FLOAT16, device="cuda")
    except gpucast.DeviceUnavailable:
        with pytest.raises(gpucast.DeviceUnavailable, match="^Backend: "):
            Backend.prepare(model, "CUDA")
        assert not Backend.supports_device("CUDA")
        assert not Backend.is_compatible(model, "CUDA")
        with pytest.raises(gpucast.DeviceUnavailable):
            Backend.prepare(model, "CUDA")
    else:
        assert Backend.supports_device("CUDA")
        (y,) = Backend.run_model(model, [INFINITY], "CUDA")
        assert y.tolist() == [np.inf]


class OnDevice:
    """What a device cast returns: an array elsewhere, with CuPy's `get`."""

    def __init__(self, x: Any) -> None:
        self.get = lambda: x


def test_casts_go_to_the_device_and_text_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []

    def placed(cast: Any) -> Any:
        def call(x: Any, to: Any, *, device: str | None = None, **keywords: Any) -> Any:
            places.append(device)
            result = cast(x, to, **keywords)
            return result if device is None else OnDevice(result)

        return call

    def tried(x: Any, to: Any, options: Options) -> None:
        places.append(options.device)

    monkeypatch.setattr(interop.casting, "cast", placed(gpucast.cast))
    with monkeypatch.context() as during_prepare:
        during_prepare.setattr(interop.casting, "cast_with", tried)
        assert Backend.supports_device("CUDA:1")
    assert places == ["cuda:1"]
    monkeypatch.setattr(interop.Backend, "_require", lambda device: None)
    monkeypatch.setattr(interop.casting, "cast_like", placed(gpucast.cast_like))
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=FLOAT16.number),
        helper.make_node("CastLike", ["half", "x"], ["y"]),
        helper.make_node("Cast", ["y"], ["text"], to=ROWS["STRING"].number),
    ]
    model = make_model(nodes, 25, {"x": FLOAT}, {"y": FLOAT, "text": ROWS["STRING"]})
    prepared = Backend.prepare(model, "CUDA:1")
    places.clear()
    y, text = prepared.run([INFINITY])
    assert places == ["cuda:1", "cuda:1", None]
    assert (y.tolist(), text.tolist()) == ([np.inf], ["INF"])


# ---- the node tests of the installed onnx package, code by code ----

with warnings.catch_warnings():
    # onnx makes its cases when the module is imported, and casts 1e6 to float16 on the way.
    warnings.simplefilter("ignore", RuntimeWarning)
    node = importlib.import_module("onnx.backend.test.case.node")
    for module in ("cast", "castlike"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")

#: onnx's own objects, from its two modules on the operators: all 1,884 node cases would take 15 seconds to make.
CASES = {case.name: case for case in node._NodeTestCases if case.name.startswith(("test_cast_", "test_castlike_"))}


@pytest.mark.parametrize("name", CASES)
def test_node_case_bit_for_bit(name: str) -> None:
    model = CASES[name].model
    inputs = [
        to_array(tensor) if isinstance(tensor, onnx.TensorProto) else tensor for tensor in CASES[name].data_sets[0][0]
    ]
    (actual,) = Backend.run_model(model, inputs)
    (cast_node,) = model.graph.node
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in cast_node.attribute}
    saturate = bool(attributes.get("saturate", 1))
    round_mode = attributes.get("round_mode", b"up").decode()
    src, dst = (
        gpucast.dtype(value.type.tensor_type.elem_type) for value in (model.graph.input[0], model.graph.output[0])
    )
    opset = model.opset_import[0].version
    expected = exact.cast_codes(
        codes_of(inputs[0], src).reshape(-1).tolist(),
        rule.resolve(src, dst, Options(saturate=saturate, round_mode=round_mode, opset=opset)),
    )
    assert actual.shape == inputs[0].shape
    assert codes_of(actual, dst).reshape(-1).tolist() == expected


# ---- Cast and CastLike in onnx's reference evaluator: every version's types, attributes and rules ----

FLOAT, STRING, E4M3FN, E8M0 = (ROWS[name] for name in ("FLOAT", "STRING", "FLOAT8E4M3FN", "FLOAT8E8M0"))
#: Attributes with their default values.
DEFAULTS: dict[str, Any] = {"saturate": 1, "round_mode": "up"}
VERSIONS = [("Cast", version) for version in CAST_VERSIONS] + [("CastLike", version) for version in CASTLIKE_VERSIONS]


def run_pair(operator: str, src: DType, dst: DType, opset: int, **attributes: Any) -> Any:
    if operator == "Cast":
        return run_operator(cast_model(src, dst, opset, **attributes), zeros(src))
    return run_operator(cast_like_model(src, dst, opset, **attributes), zeros(src), zeros(dst, (0,)))


def schema_types(operator: str, version: int) -> set[DType]:
    constraint = onnx.defs.get_schema(operator, version).type_constraints[0]
    return {gpucast.dtype(text.removeprefix("tensor(").removesuffix(")")) for text in constraint.allowed_type_strs}


@pytest.mark.parametrize(("operator", "versions"), [("Cast", CAST_VERSIONS), ("CastLike", CASTLIKE_VERSIONS)])
def test_versions_are_those_of_onnx(operator: str, versions: tuple[int, ...]) -> None:
    history = {
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == ("", operator)
    }
    assert {version for version in history if version <= gpucast.DEFAULT_OPSET} == set(versions)


@pytest.mark.parametrize(("operator", "version"), VERSIONS)
def test_types_of_a_version(operator: str, version: int) -> None:
    legal = schema_types(operator, version)
    assert FLOAT in legal
    for row in (row for row in DTYPES if row.number is not None):
        for src, dst in ((row, FLOAT), (FLOAT, row)):
            if row in legal:
                result = run_pair(operator, src, dst, version)
                assert (result.dtype, result.shape) == (dst.numpy, (1,))
            else:
                with pytest.raises(TypeError, match=rf"{row.name} entered at opset {row.opset}"):
                    run_pair(operator, src, dst, version)


@pytest.mark.parametrize(("operator", "version"), VERSIONS)
def test_attributes_of_a_version_are_judged_by_presence(operator: str, version: int) -> None:
    legal = onnx.defs.get_schema(operator, version).attributes
    for name, value in DEFAULTS.items():
        if name in legal:
            run_pair(operator, FLOAT, FLOAT, version, **{name: value})
        else:
            with pytest.raises(
                ValueError, match=rf"^{operator}: attribute '{name}' needs opset \d+; opset={version} has"
            ):
                run_pair(operator, FLOAT, FLOAT, version, **{name: value})
    with pytest.raises(ValueError, match=f"^{operator}: attribute 'mode' is unknown"):
        run_pair(operator, FLOAT, FLOAT, version, mode=1)


def test_an_opset_between_versions_has_the_older_one() -> None:
    with pytest.raises(ValueError, match="opset=18 has version 13"):
        run_pair("Cast", FLOAT, FLOAT, 18, saturate=1)
    with pytest.raises(TypeError, match=r"FLOAT6E2M3 entered at opset 28; opset=28 has version 25"):
        run_pair("CastLike", FLOAT, ROWS["FLOAT6E2M3"], 28)


@pytest.mark.parametrize(("operator", "opset"), [("Cast", 0), ("Cast", 29), ("CastLike", 14), ("CastLike", 29)])
def test_opset_without_a_known_version(operator: str, opset: int) -> None:
    with pytest.raises(ValueError, match=f"^{operator}: opset={opset} is not supported"):
        run_pair(operator, FLOAT, FLOAT, opset)


def test_to_is_required_and_castlike_has_none() -> None:
    model = cast_model(FLOAT, FLOAT, 28)
    del model.graph.node[0].attribute[:]
    with pytest.raises(ValueError, match=r"^Cast: attribute 'to' is required; the node has none"):
        run_operator(model, zeros(FLOAT))
    with pytest.raises(ValueError, match=r"^CastLike: attribute 'to' is unknown"):
        run_pair("CastLike", FLOAT, FLOAT, 25, to=1)


@pytest.mark.parametrize(
    ("opset", "attributes", "error", "message"),
    [
        (1, {"to": 10}, ValueError, "attribute to=10 must be a string in opset 1"),
        (1, {"to": "FLOAT17"}, TypeError, "to='FLOAT17' is not a dtype"),
        (1, {"to": "BFLOAT16"}, TypeError, "BFLOAT16 entered at opset 13"),
        (6, {"to": "FLOAT16"}, ValueError, "attribute to='FLOAT16' must be an integer in opset 6"),
        (28, {"to": 1.0}, ValueError, "attribute to=.*1.0.* must be an integer"),
        (28, {"to": 0}, TypeError, "to=0 is not a dtype"),
        (28, {"to": 99}, TypeError, "to=99 is not a dtype"),
        (28, {"to": onnx.TensorProto.COMPLEX64}, TypeError, "to=14 is not a dtype"),
        (28, {"saturate": "true"}, ValueError, "attribute saturate='true' must be an integer"),
        (28, {"round_mode": 1}, ValueError, "attribute round_mode=1 must be a string"),
        (28, {"round_mode": "UP"}, ValueError, "round_mode='UP' is not legal"),
    ],
)
def test_illegal_attribute_values(opset: int, attributes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_operator(cast_model(FLOAT, FLOAT, opset, **attributes), zeros(FLOAT))


#: Numbers, the type that they become, an opset, attributes, codes.
ATTRIBUTES: list[tuple[list[float], DType, int, dict[str, Any], list[int]]] = [
    *(([1e6], E4M3FN, 19, saturate, [0x7E]) for saturate in ({}, {"saturate": 1}, {"saturate": 2}, {"saturate": -1})),
    ([1e6], E4M3FN, 19, {"saturate": 0}, [0x7F]),
    *(([1.25, 1.5], E8M0, opset, {}, [0x80, 0x80]) for opset in (24, 25, 28)),
    ([1.25, 1.5], E8M0, 24, {"round_mode": "up"}, [0x80, 0x80]),
    ([1.25, 1.5], E8M0, 25, {"round_mode": "down"}, [0x7F, 0x7F]),
    ([1.25, 1.5], E8M0, 24, {"round_mode": "nearest"}, [0x7F, 0x80]),
]


@pytest.mark.parametrize(("numbers", "dst", "opset", "attributes", "codes"), ATTRIBUTES)
def test_attributes_of_both_operators(
    numbers: list[float], dst: DType, opset: int, attributes: dict[str, Any], codes: list[int]
) -> None:
    x = np.array(numbers, np.float32)
    cast = run_operator(cast_model(FLOAT, dst, opset, **attributes), x)
    cast_like = run_operator(cast_like_model(FLOAT, dst, opset, **attributes), x, zeros(dst, (2, 0)))
    assert cast.view(np.uint8).tolist() == cast_like.view(np.uint8).tolist() == codes


def test_an_input_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Cast: the input is a list; expected a tensor"):
        run_operator(cast_model(FLOAT, FLOAT, 28), [1.0])
    with pytest.raises(TypeError, match=r"^CastLike: input of type 'complex64' is complex"):
        run_operator(cast_like_model(FLOAT, FLOAT, 25), zeros(FLOAT), np.zeros(1, np.complex64))
