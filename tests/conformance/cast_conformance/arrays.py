# SPDX-License-Identifier: Apache-2.0
"""Codes to arrays of NumPy and ml_dtypes and back, for the adapters of libraries that take those."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

NDArray = npt.NDArray[Any]

#: The names of ml_dtypes; NumPy's own types are the rest.
_ML_DTYPES = {
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
    "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4",
    "UINT4": "uint4",
    "INT2": "int2",
    "UINT2": "uint2",
}
#: Numbers in ONNX's TensorProto.DataType.
ONNX = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "STRING": 8, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13, "BFLOAT16": 16, "FLOAT8E4M3FN": 17, "FLOAT8E4M3FNUZ": 18,
    "FLOAT8E5M2": 19, "FLOAT8E5M2FNUZ": 20, "UINT4": 21, "INT4": 22, "FLOAT4E2M1": 23, "FLOAT8E8M0": 24, "UINT2": 25,
    "INT2": 26, "FLOAT6E2M3": 27, "FLOAT6E3M2": 28,
}  # fmt: skip


@lru_cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a type of the suite."""
    if name == "FLOAT8UE5M3":
        return np.dtype([("float8_ue5m3", np.uint8)])  # Neither library has it.
    if name not in _ML_DTYPES:
        return np.dtype({"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower()))
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


def array_of(codes: NDArray, name: str) -> NDArray:
    return codes.view(numpy_dtype(name))


def codes_of(x: Any, name: str) -> NDArray:
    """The codes of an array; TypeError where it is not of the type."""
    array = np.ascontiguousarray(x)
    if array.dtype != numpy_dtype(name):
        raise TypeError(f"the result is {array.dtype}")
    row = manifest()["types"][name]
    codes: NDArray = array.view(codes_dtype(row)) & codes_dtype(row).type((1 << row["bits"]) - 1)
    return codes


def onnx_model(src: str, dst: str, opset: int, ir_version: int, **attributes: Any) -> Any:
    """A model of one node: Cast from x to y."""
    from onnx import helper

    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=ONNX[dst], **attributes)],
        "cast",
        [helper.make_tensor_value_info("x", ONNX[src], None)],
        [helper.make_tensor_value_info("y", ONNX[dst], None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def onnx_attributes(mode: str) -> dict[str, Any]:
    """The attributes of Cast that ask for a convention."""
    words = mode.split("-")[1:]
    found: dict[str, Any] = {"saturate": 0} if "overflowing" in words else {}
    return found | ({"round_mode": word} if (word := words[0] if words else "") in ("up", "down", "nearest") else {})
