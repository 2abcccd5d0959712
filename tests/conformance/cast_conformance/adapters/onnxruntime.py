# SPDX-License-Identifier: Apache-2.0
"""onnxruntime on the CPU: a model of one Cast. Numbers go in and out as plain memory,
because arrays of few types do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from cast_conformance.adapters.onnx import MODES
from cast_conformance.arrays import ONNX, onnx_attributes, onnx_model
from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

__all__ = ["MODES", "cast", "version"]

_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_OPTIONS.intra_op_num_threads = 1
_OPTIONS.log_severity_level = 4


def version() -> str:
    return f"onnxruntime {onnxruntime.__version__}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    model = onnx_model(src, dst, 26, 13, **onnx_attributes(mode))
    session = onnxruntime.InferenceSession(model.SerializeToString(), _OPTIONS, providers=["CPUExecutionProvider"])
    binding, rows = session.io_binding(), manifest()["types"]
    memory, result = (
        _packed(codes, rows[src]["bits"]),
        _packed(np.zeros(codes.size, codes_dtype(rows[dst])), rows[dst]["bits"]),
    )
    binding.bind_input("x", "cpu", 0, ONNX[src], codes.shape, memory.ctypes.data)
    binding.bind_output("y", "cpu", 0, ONNX[dst], codes.shape, result.ctypes.data)
    session.run_with_iobinding(binding)
    if rows[dst]["bits"] >= 8:
        return result
    bits = np.unpackbits(result, bitorder="little")[: codes.size * rows[dst]["bits"]].reshape(codes.size, -1)
    return np.packbits(bits, axis=1, bitorder="little")[:, 0]


def _packed(codes: Any, bits: int) -> Any:
    """Codes below 8 bits as ONNX raw_data."""
    if bits >= 8:
        return np.ascontiguousarray(codes)
    return np.packbits(np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little"), bitorder="little")
