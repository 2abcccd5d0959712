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

    row: DType
    shape: tuple[int, ...]


def described(kind: object, shape: object, nbytes: int, path: str, name: str) -> Described:
    """The dtype and shape that a file gives for `nbytes` of raw_data, checked."""
    try:
        row = dtype(kind) if isinstance(kind, str) else None
    except TypeError:
        row = None
    if row is None or not row.packed:
        raise FileError(f"{path}: tensor {name!r}: {kind!r} is no type of 2, 4 or 6 bits")
    lengths = checked_lengths(shape, path, name)
    needed = row.nbytes(math.prod(lengths))
    if needed != nbytes:
        raise FileError(
            f"{path}: tensor {name!r}: {row.name} of shape {lengths} takes {needed} bytes, the file holds {nbytes}"
        )
    return Described(row, lengths)


def write(file: BinaryIO, row: DType, chunks: Iterable[Array]) -> int:
    """The elements of flat chunks, packed where their type is; the bytes written."""
    total = 0
    for chunk in chunks:
        data = encoded(row, chunk)
        file.write(data.data)
        total += data.nbytes
    return total


def encoded(row: DType, chunk: Array) -> Array:
    """The bytes of flat elements: packed codes, or little-endian ones."""
    if row.packed:
        return np.asarray(pack_codes(np.ascontiguousarray(chunk).view(np.uint8), row.bits))
    codes = chunk.view(row.code_numpy).astype(row.code_numpy.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(codes).view(np.uint8)
