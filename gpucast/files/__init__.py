# SPDX-License-Identifier: Apache-2.0
"""Files of named tensors: .npy, .npz, ONNX .pb, .safetensors. Any of the 26 types that the format has a way to hold."""

from gpucast.files.formats import SUFFIXES, TensorFile, create, kept, load, save
from gpucast.files.tensor import FileError, Spec, Tensor

__all__ = ["SUFFIXES", "FileError", "Spec", "Tensor", "TensorFile", "create", "kept", "load", "save"]
