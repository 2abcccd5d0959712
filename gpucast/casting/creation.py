# SPDX-License-Identifier: Apache-2.0
"""Arrays of any of the types without values, or from raw bytes."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines
from gpucast.casting.engine import Engine
from gpucast.core.checks import checked_shape
from gpucast.core.dtypes import DType, dtype


@overload
def empty(shape: Any, dtype: Any, device: Literal["cpu"] | None = None) -> npt.NDArray[Any]: ...
@overload
def empty(shape: Any, dtype: Any, device: Any = None) -> Any: ...
def empty(shape: Any, dtype: Any, device: Any = None) -> Any:
    """An array of `shape` without set values, of the kind that `cast` returns for that device.

    On the host (`device` None or "cpu") a NumPy array: ml_dtypes for the types that NumPy lacks, objects (all "") for
    STRING. On a device ("cuda", "cuda:1") a CuPy array, or a PackedArray for types below one byte.
    """
    kind = _kind(dtype, "empty")
    lengths = checked_shape(shape, "empty")
    return _empty(lengths, kind, engines.named(device, "empty"))


def _empty(shape: tuple[int, ...], kind: DType, engine: Engine, packs: bool = False) -> Any:
    if kind.family == "string" and not engine.has_text:
        raise ValueError("empty: a device cannot hold STRING; expected device=None or 'cpu'")
    return engine.empty(shape, kind, packs)


def empty_like(x: Any, dtype: Any = None, device: Any = None) -> Any:
    """As `empty`, with x's shape and, unless given, x's dtype; a PackedArray gives a PackedArray."""
    if not isinstance(x, PackedArray) and namespace(x) is None:
        x = np.asarray(x)
    kind = _kind(x.dtype if dtype is None else dtype, "empty_like")
    there = engines.named(device, "empty_like", engines.of_array(x))
    return _empty(x.shape, kind, there, isinstance(x, PackedArray))


def from_bytes(buffer: Any, dtype: Any, shape: Any) -> Any:
    """An array over the bytes of ONNX raw_data (little-endian, row-major), without a copy.

    `buffer` is a bytes-like object, or a flat uint8 array (NumPy or CuPy). The result is an array of `shape`; for
    types below one byte a PackedArray. CuPy data of types that CuPy lacks is tagged with the ml_dtypes dtype.
    ValueError when the length is not exactly that of the shape. An array over ``bytes`` is read-only.
    """
    kind = _kind(dtype, "from_bytes")
    lengths = checked_shape(shape, "from_bytes")
    if kind.family == "string":
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
    needed = kind.nbytes(math.prod(lengths))
    if buffer.size != needed:
        raise ValueError(f"from_bytes: got {buffer.size} bytes; {kind.name} of shape {lengths} takes {needed}")
    if not buffer.flags.c_contiguous:
        raise ValueError("from_bytes: the array is not contiguous")
    if kind.packed:
        return PackedArray(buffer, kind, lengths)
    return buffer.view(kind.numpy.newbyteorder("<")).reshape(lengths)


def _kind(given: Any, caller: str) -> DType:
    return dtype(given, caller=f"{caller}: dtype=")
