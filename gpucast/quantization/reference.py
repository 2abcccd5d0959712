# SPDX-License-Identifier: Apache-2.0
"""The specification of quantization, under its public name; it is `gpucast.quantization.exact_quantize`."""

from gpucast.core import packages
from gpucast.quantization.exact_quantize import dequantize, quantize

__all__ = ["dequantize", "quantize"]

packages.publish(globals())
