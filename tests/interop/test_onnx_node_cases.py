# SPDX-License-Identifier: Apache-2.0
"""The node tests of the installed onnx package, on our backend: as onnx judges them, and code by code.

onnx compares with a tolerance that hides wrong codes (0x00 for 0x01, signs of zero, NaN codes), so every output is
also compared bit for bit with the exact model.
"""

from __future__ import annotations

import importlib
import unittest
import warnings
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
from onnx.backend.test import BackendTest, runner
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


class RecordingBackend(Backend):
    prepared: ClassVar[list[str]] = []

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        cls.prepared.append(model.graph.name)
        return super().prepare(model, device, **kwargs)


@pytest.fixture(scope="module")
def suite() -> type[unittest.TestCase]:
    """onnx's runner over these cases, for both devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_model_tests", lambda kind: list(CASES.values()) if kind == "node" else [])
        cases: dict[str, type[unittest.TestCase]] = BackendTest(RecordingBackend, __name__).test_cases
    return cases["OnnxBackendNodeModelTest"]


def test_there_are_172_cases(suite: type[unittest.TestCase]) -> None:
    names = unittest.defaultTestLoader.getTestCaseNames(suite)
    assert {name for name in names if name.endswith("_cpu")} == {f"{name}_cpu" for name in CASES}
    assert len(CASES) == 172


def test_onnx_has_no_cases_elsewhere() -> None:
    folder = Path(node.__file__).parent
    naming = {path.stem for path in folder.rglob("*.py") if "test_cast" in path.read_text(encoding="utf-8")}
    assert naming == {"cast", "castlike"}


@pytest.mark.parametrize("name", CASES)
def test_node_case(suite: type[unittest.TestCase], name: str) -> None:
    RecordingBackend.prepared.clear()
    result = unittest.TestResult()
    suite(f"{name}_cpu").run(result)
    assert (result.testsRun, result.skipped) == (1, [])
    assert result.wasSuccessful(), (result.errors or result.failures)[0][1]
    assert RecordingBackend.prepared == [CASES[name].model.graph.name]


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
