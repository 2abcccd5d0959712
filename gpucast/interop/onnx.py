# SPDX-License-Identifier: Apache-2.0
"""ONNX models, under its public name; it is `gpucast.onnx.backend`."""

from gpucast.core import packages
from gpucast.onnx import backend
from gpucast.onnx.backend import Backend, BackendRep, Cast, CastLike, fold_casts

__doc__ = backend.__doc__

__all__ = ["Backend", "BackendRep", "Cast", "CastLike", "fold_casts"]

packages.publish(globals())
