# SPDX-License-Identifier: Apache-2.0
"""The reference evaluator of the package onnx."""

from __future__ import annotations

from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

from cast_conformance.arrays import array_of, codes_of, onnx_attributes, onnx_model

MODES = (
    "onnx",
    "onnx-overflowing",
    "onnx-down",
    "onnx-nearest",
    "onnx-up-overflowing",
    "onnx-down-overflowing",
    "onnx-nearest-overflowing",
)


def version() -> str:
    return f"onnx {onnx.__version__}"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    model = onnx_model(src, dst, 28, 14, **onnx_attributes(mode))
    result: Any = ReferenceEvaluator(model).run(None, {"x": array_of(codes, src)})
    return codes_of(result[0], dst)
