# SPDX-License-Identifier: Apache-2.0
"""Quantization: arrays as narrow codes with scales, in the formats of `gpucast.core.formats`.

The public functions are `gpucast.quantize` and `gpucast.dequantize`. `gpucast.reference.exact_quantize` defines every
result.
"""

from gpucast.core import packages
from gpucast.core.formats import FORMATS, Format
from gpucast.core.steps import Steps
from gpucast.quantization.grouped import Grouped, cast_grouped, quantize_grouped
from gpucast.quantization.hadamard_array import hadamard
from gpucast.quantization.lossless import repack
from gpucast.quantization.quantize_array import dequantize, quantize
from gpucast.quantization.quantized import Quantized
from gpucast.quantization.recipes import RECIPES, Recipe

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
