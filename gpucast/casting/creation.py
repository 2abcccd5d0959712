# SPDX-License-Identifier: Apache-2.0
"""Arrays of any of the types without values, or from raw bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast import gpu
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import PackedArray, checked_shape, home
from gpucast.core.dtypes import DType, dtype
from gpucast.gpu import devices


def empty(shape: Any, dtype: Any, device: str | None = None) -> Any:
    """An array of `shape` without set values, of the kind that `cast` returns for that device.

    On the host (`device` None or "cpu") a NumPy array: ml_dtypes for the types that NumPy lacks, objects (all "") for
    STRING. On a device ("cuda", "cuda:1") a CuPy array, or a PackedArray for types below one byte.
    """
    row = _row(dtype, "empty")
    lengths = checked_shape(shape, "empty")
    place = devices.parse(device, "empty")
    if place is not None and place != "cpu":
        return _empty_on(devices.index(place, "empty"), lengths, row)
    if row.family == "string":
        return np.full(lengths, "", dtype=object)
    return np.empty(lengths, dtype=row.numpy)


def empty_like(x: Any, dtype: Any = None, device: str | None = None) -> Any:
    """As `empty`, with x's shape and, unless given, x's dtype; a PackedArray gives a PackedArray."""
    if not isinstance(x, PackedArray) and namespace(x) is None:
        x = np.asarray(x)
    row = _row(x.dtype if dtype is None else dtype, "empty_like")
    if isinstance(x, PackedArray) and row.packed and (device == "cpu" or (device is None and home(x) is None)):
        return PackedArray(np.empty(row.nbytes(x.size), dtype=np.uint8), row, x.shape)
    if device is None and home(x) is not None:
        device = f"cuda:{home(x)}"
    return empty(x.shape, row, device)


def from_bytes(buffer: Any, dtype: Any, shape: Any) -> Any:
    """An array over the bytes of ONNX raw_data (little-endian, row-major), without a copy.

    `buffer` is a bytes-like object, or a flat uint8 array (NumPy or CuPy). The result is an array of `shape`; for
    types below one byte a PackedArray. CuPy data of types that CuPy lacks is tagged with the ml_dtypes dtype.
    ValueError when the length is not exactly that of the shape. An array over ``bytes`` is read-only.
    """
    row = _row(dtype, "from_bytes")
    lengths = checked_shape(shape, "from_bytes")
    if row.family == "string":
        raise TypeError("from_bytes: STRING has no raw bytes")
    if namespace(buffer) is None:
        try:
            buffer = np.frombuffer(buffer, dtype=np.uint8) if memoryview(buffer) else np.empty(0, np.uint8)
        except TypeError:
            raise TypeError(f"from_bytes: {type(buffer).__name__} is no bytes-like object and no array") from None
        except (BufferError, ValueError):
            raise ValueError("from_bytes: the buffer is not contiguous") from None
    if buffer.dtype != np.uint8 or buffer.ndim != 1:
        raise TypeError(f"from_bytes: got dtype {buffer.dtype}, shape {buffer.shape}; expected a flat uint8 array")
    if row.packed:
        return PackedArray(buffer, row, lengths)
    needed = math.prod(lengths) * row.bits // 8
    if buffer.size != needed:
        raise ValueError(f"from_bytes: got {buffer.size} bytes; {row.name} of shape {lengths} takes {needed}")
    if not buffer.flags.c_contiguous:
        raise ValueError("from_bytes: the array is not contiguous")
    return buffer.view(row.numpy.newbyteorder("<")).reshape(lengths)


def _empty_on(index: int, shape: tuple[int, ...], row: DType) -> Any:
    if row.family == "string":
        raise ValueError("empty: a device cannot hold STRING; expected device=None or 'cpu'")
    with gpu.driver.driver().on(index):
        return gpu.cast.new(shape, row)


def _row(kind: Any, who: str) -> DType:
    return dtype(kind, who=f"{who}: dtype=")
