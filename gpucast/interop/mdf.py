# SPDX-License-Identifier: Apache-2.0
"""MDF, under its public name; it is `gpucast.onnx.mdf`."""

from gpucast.core import packages
from gpucast.onnx import mdf
from gpucast.onnx.mdf import install, installed, uninstall

__doc__ = mdf.__doc__

__all__ = ["install", "installed", "uninstall"]

packages.publish(globals())
