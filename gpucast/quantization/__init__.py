# SPDX-License-Identifier: Apache-2.0
"""Quantization: arrays as narrow codes with scales, in the formats of `gpucast.quantization.formats`.

The public functions are `gpucast.quantize` and `gpucast.dequantize`. `gpucast.quantization.exact_quantize` defines
every result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucast.arrays import libraries
from gpucast.core import packages
from gpucast.quantization.formats import FORMATS, Format
from gpucast.quantization.grouped import Grouped, cast_grouped, quantize_grouped
from gpucast.quantization.hadamard_array import hadamard
from gpucast.quantization.lossless import repack
from gpucast.quantization.quantize_array import dequantize, quantize
from gpucast.quantization.quantized import Quantized
from gpucast.quantization.recipes import RECIPES, Recipe
from gpucast.quantization.steps import Steps

__all__ = [
    "FORMATS",
    "RECIPES",
    "Format",
    "Grouped",
    "Quantized",
    "Recipe",
    "Steps",
    "cast_grouped",
    "dequantize",
    "hadamard",
    "quantize",
    "quantize_grouped",
    "repack",
]

packages.publish(globals())


def _hadamard_of_tensors() -> Callable[..., Any]:
    from gpucast.quantization.hadamard_torch import hadamard

    return hadamard


libraries.extend("torch", "hadamard", _hadamard_of_tensors)
