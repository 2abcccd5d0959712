# SPDX-License-Identifier: Apache-2.0
"""Quantization of NumPy arrays: by the compiled library where it can, else by NumPy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gpucast.core.formats import Format, Parts
from gpucast.core.random import Random
from gpucast.quantization import native
from gpucast.quantization.cpu import quantize as cpu
from gpucast.quantization.cpu.quantize import dequantize

__all__ = ["dequantize", "quantize"]


def quantize(
    x: npt.NDArray[Any], format: Format, *, axis: int = -1, scale: Any = None, random: Random | None = None
) -> Parts:
    """As `gpucast.quantization.reference.quantize`."""
    return cpu.quantize(x, format, axis=axis, scale=scale, random=random, find=native.find)
