# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from gpucast.core.dtypes import DTYPES, DType
from gpucast.onnx.backend import Cast, CastLike

ROWS = {dtype.name: dtype for dtype in DTYPES}


def make_model(
    nodes: list[onnx.NodeProto], opset: int, inputs: dict[str, DType], outputs: dict[str, DType], **rest: Any
) -> onnx.ModelProto:
    """A model over vectors (shapes are judged by the checker alone)."""
    values = [
        [helper.make_tensor_value_info(name, dtype.number, [None]) for name, dtype in side.items()]
        for side in (inputs, outputs)
    ]
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(nodes, "test", *values)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **rest)


def cast_model(src: DType, dst: DType, opset: int, **attributes: Any) -> onnx.ModelProto:
    attributes.setdefault("to", dst.name if opset < 6 else dst.number)
    node = helper.make_node("Cast", ["x"], ["y"], **attributes)
    return make_model([node], opset, {"x": src}, {"y": dst})


def cast_like_model(src: DType, dst: DType, opset: int, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("CastLike", ["x", "like"], ["y"], **attributes)
    return make_model([node], opset, {"x": src, "like": dst}, {"y": dst})


def save_external(path: Path | str, x: np.ndarray) -> None:
    """A model whose only initializer lies beside it, in a folder that need not be there."""
    node = helper.make_node("PRelu", ["x", "w"], ["y"])
    model = make_model([node], 21, {"x": ROWS["FLOAT"]}, {"y": ROWS["FLOAT"]})
    model.graph.initializer.append(numpy_helper.from_array(x, "w"))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    location = os.path.basename(path) + ".bin"
    onnx.save(model, str(path), save_as_external_data=True, location=location, size_threshold=100)


def zeros(dtype: DType, shape: tuple[int, ...] = (1,)) -> np.ndarray:
    return np.full(shape, "0", object) if dtype.family == "string" else np.zeros(shape, dtype.numpy)


def run_operator(model: onnx.ModelProto, x: Any, like: Any = None) -> Any:
    """The output of a one-node model on onnx's evaluator with our operators."""
    feeds = {"x": x} if like is None else {"x": x, "like": like}
    (result,) = ReferenceEvaluator(model, new_ops=[Cast, CastLike]).run(None, feeds)
    return result
