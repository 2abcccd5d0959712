# SPDX-License-Identifier: Apache-2.0
"""The specification of quantization, under its public name; it is `gpucast.reference.quantize`."""

from gpucast.core import pickles
from gpucast.reference.quantize import dequantize, quantize

__all__ = ["dequantize", "quantize"]

pickles.publish(globals())
