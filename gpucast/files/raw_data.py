# SPDX-License-Identifier: Apache-2.0
"""Types that a format lacks, kept as a U8 tensor of ONNX raw_data with dtype and shape beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from gpucast.arrays.bitpacking import pack_codes
from gpucast.core.dtypes import DType, dtype
from gpucast.files.tensor import Array, FileError, checked_lengths


@dataclass(frozen=True)
class Described:
    """What the bytes of a U8 tensor stand for."""

    dtype: DType
    shape: tuple[int, ...]


def described(kind: object, shape: object, nbytes: int, path: str, name: str) -> Described:
    """The dtype and shape that a file gives for `nbytes` of raw_data, checked."""
    try:
        onnx_type = dtype(kind) if isinstance(kind, str) else None
    except TypeError:
        onnx_type = None
    if onnx_type is None or not onnx_type.packed:
        raise FileError(f"{path}: tensor {name!r}: {kind!r} is no type of 2, 4 or 6 bits")
    lengths = checked_lengths(shape, path, name)
    needed = onnx_type.nbytes(math.prod(lengths))
    if needed != nbytes:
        raise FileError(
            f"{path}: tensor {name!r}: {onnx_type.name} of shape {lengths} takes {needed} bytes, "
            f"the file holds {nbytes}"
        )
    return Described(onnx_type, lengths)


def write(file: BinaryIO, onnx_type: DType, chunks: Iterable[Array]) -> int:
    """The elements of flat chunks, packed where their type is; the bytes written."""
    total = 0
    for chunk in chunks:
        data = encoded(onnx_type, chunk)
        file.write(data.data)
        total += data.nbytes
    return total


def encoded(onnx_type: DType, chunk: Array) -> Array:
    """The bytes of flat elements: packed codes, or little-endian ones."""
    if onnx_type.packed:
        return np.asarray(pack_codes(np.ascontiguousarray(chunk).view(np.uint8), onnx_type.bits))
    codes = chunk.view(onnx_type.code_numpy).astype(onnx_type.code_numpy.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(codes).view(np.uint8)
