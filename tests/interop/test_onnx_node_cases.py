# SPDX-License-Identifier: Apache-2.0
"""The node tests of the installed onnx package, on our backend: as onnx judges them, and code by code.

onnx compares with a tolerance that hides wrong codes (0x00 for 0x01, signs of zero, NaN codes), so every output is
also compared bit for bit with the exact model.
"""

from __future__ import annotations

import importlib
import warnings

import onnx
import pytest
from onnx.numpy_helper import to_array

import exact
import gpucast
from codes import codes_of
from gpucast.core import rule
from gpucast.core.rule import Options
from gpucast.interop.onnx import Backend

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
