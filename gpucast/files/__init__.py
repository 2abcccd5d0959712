# SPDX-License-Identifier: Apache-2.0
"""Files of named tensors: .npy, .npz, ONNX .pb and .onnx, .safetensors.

Each format holds the types that it can represent.
"""

from gpucast.core import packages
from gpucast.files.named_arrays import save
from gpucast.files.tensor import FileError, Spec, Tensor, Writer
from gpucast.files.tensor_file import MODEL, SUFFIXES, TensorFile, check, create, kept, load, on_host, writing

__all__ = [
    "MODEL",
    "SUFFIXES",
    "FileError",
    "Spec",
    "Tensor",
    "TensorFile",
    "Writer",
    "check",
    "create",
    "kept",
    "load",
    "on_host",
    "save",
    "writing",
]

packages.publish(globals())
