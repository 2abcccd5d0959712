# SPDX-License-Identifier: Apache-2.0
"""gpucast: the ONNX Cast operator, every version and all 26 types, bit-exact, for NumPy and CuPy arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpucast import device as device
from gpucast import dtypes as dtypes
from gpucast import layers, reference
from gpucast.arrays.packed import PackedArray
from gpucast.casting.batch import cast_many
from gpucast.casting.cast import cast, cast_like
from gpucast.casting.creation import empty, empty_like, from_bytes
from gpucast.casting.report import CastReport, cast_report
from gpucast.codegen.device_function import device_function
from gpucast.core.dtypes import DTYPES, DType, dtype, finfo, iinfo
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import DEFAULT_OPSET
from gpucast.core.version import __version__ as __version__
from gpucast.warmup.api import warmup

if TYPE_CHECKING:
    from gpucast import mixed, quantization
    from gpucast.quantization import Quantized, dequantize, quantize

__all__ = [
    "DEFAULT_OPSET",
    "DTYPES",
    "CastReport",
    "DType",
    "DeviceUnavailable",
    "PackedArray",
    "Quantized",
    "cast",
    "cast_like",
    "cast_many",
    "cast_report",
    "dequantize",
    "device_function",
    "dtype",
    "empty",
    "empty_like",
    "finfo",
    "from_bytes",
    "iinfo",
    "layers",
    "mixed",
    "quantization",
    "quantize",
    "reference",
    "warmup",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is used, so that ``import gpucast`` stays quick."""
    if name in ("mixed", "quantization"):
        return importlib.import_module(f"gpucast.{name}")
    if name in ("Quantized", "dequantize", "quantize"):
        return getattr(importlib.import_module("gpucast.quantization"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
