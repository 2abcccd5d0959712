# SPDX-License-Identifier: Apache-2.0
"""Stores types that a format lacks: as ONNX raw_data in a UINT8 tensor, with dtype and shape in the metadata."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from gpucast.arrays.bitpacking import codes_of, pack_codes
from gpucast.core.dtypes import DType, dtype
from gpucast.files.tensor import FileError, NDArray, checked_lengths


def described(kind: object, shape: object, nbytes: int, path: str, name: str) -> tuple[DType, tuple[int, ...]]:
    """The dtype and shape that a file gives for `nbytes` bytes of raw_data. FileError if they do not fit."""
    try:
        onnx_type = dtype(kind) if isinstance(kind, str) else None
    except TypeError:
        onnx_type = None
    lacking = onnx_type is not None and onnx_type.safetensors is None and onnx_type.family != "string"
    if onnx_type is None or not (onnx_type.packed or lacking):
        raise FileError(f"{path}: tensor {name!r}: {kind!r} is no type of 2, 4 or 6 bits, and none that formats lack")
    lengths = checked_lengths(shape, path, name)
    needed = onnx_type.nbytes(math.prod(lengths))
    if needed != nbytes:
        raise FileError(
            f"{path}: tensor {name!r}: {onnx_type.name} of shape {lengths} takes {needed} bytes, "
            f"the file holds {nbytes}"
        )
    return onnx_type, lengths


def write(file: BinaryIO, onnx_type: DType, chunks: Iterable[NDArray]) -> int:
    """Write the elements of flat chunks as raw_data; the number of bytes."""
    total = 0
    for chunk in chunks:
        data = encoded(onnx_type, chunk)
        file.write(data.data)
        total += data.nbytes
    return total


def encoded(onnx_type: DType, chunk: NDArray) -> NDArray:
    """Flat elements as raw_data: packed codes, or little-endian elements."""
    if onnx_type.packed:
        return np.asarray(pack_codes(np.ascontiguousarray(chunk).view(np.uint8), onnx_type.bits))
    codes = codes_of(chunk, onnx_type.code_numpy).astype(onnx_type.code_numpy.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(codes).view(np.uint8)
