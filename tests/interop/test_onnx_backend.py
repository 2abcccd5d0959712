# SPDX-License-Identifier: Apache-2.0
"""The ONNX backend: whole models, functions and subgraphs, inputs and outputs, devices, bad models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import gpucast
import gpucast.interop.onnx as interop
from gpucast.interop.onnx import Backend, Cast, CastLike
from onnx_models import ROWS, cast_like_model, cast_model, make_model, zeros

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
    for unknown in ("TPU", "cuda", "CUDA:x"):
        assert not Backend.supports_device(unknown)
        with pytest.raises(ValueError, match="device"):
            Backend.prepare(model, unknown)
    try:
        gpucast.cast(zeros(FLOAT), FLOAT16, device="cuda")
    except gpucast.DeviceUnavailable:
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

    monkeypatch.setattr(interop.casting, "cast", placed(gpucast.cast))
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
