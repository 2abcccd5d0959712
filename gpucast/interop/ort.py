# SPDX-License-Identifier: Apache-2.0
"""onnxruntime, under its public name; it is `gpucast.onnx.ort`."""

from gpucast.core import packages
from gpucast.onnx import ort
from gpucast.onnx.ort import bind_input, bind_output, from_ortvalue, ortvalue

__doc__ = ort.__doc__

__all__ = ["bind_input", "bind_output", "from_ortvalue", "ortvalue"]

packages.publish(globals())
