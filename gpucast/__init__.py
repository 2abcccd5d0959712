# SPDX-License-Identifier: Apache-2.0
"""gpucast: the ONNX Cast operator, every version and all 26 types, bit-exact, for NumPy and CuPy arrays."""

from __future__ import annotations

from gpucast import layers, reference
from gpucast.cast import cast, cast_like
from gpucast.creation import empty, empty_like, from_bytes
from gpucast.device_function import device_function
from gpucast.dtypes import DTYPES, DType, dtype, finfo, iinfo
from gpucast.errors import DeviceUnavailable
from gpucast.packed import PackedArray
from gpucast.report import CastReport, cast_report
from gpucast.rule import DEFAULT_OPSET
from gpucast.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_OPSET",
    "DTYPES",
    "CastReport",
    "DType",
    "DeviceUnavailable",
    "PackedArray",
    "cast",
    "cast_like",
    "cast_report",
    "device_function",
    "dtype",
    "empty",
    "empty_like",
    "finfo",
    "from_bytes",
    "iinfo",
    "layers",
    "reference",
    "warmup",
]
