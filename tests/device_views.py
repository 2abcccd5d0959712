# SPDX-License-Identifier: Apache-2.0
"""Arrays on a device that do not lie as a new one does: reversed, with gaps, at odd addresses. All are made there: an
array of the host becomes contiguous and aligned on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import gpucast
from codes import assert_same, random_codes
from gpucast import PackedArray
from gpucast.core.dtypes import DType
from gpucast.gpu import cast_on_gpu

SIZES = (1, 7, 4099, 100_003)


def on_device(host: np.ndarray) -> Any:
    """A new array on the device, packed where its type is."""
    return gpucast.cast(host, host.dtype, device="cuda")


def on_host(x: Any) -> np.ndarray:
    """A copy of the bytes as they lie there; a view that is not contiguous is copied by a kernel first."""
    result = cast_on_gpu.to_host(x)
    return result.get() if isinstance(result, PackedArray) else np.asarray(result)


def at_byte(host: np.ndarray, dtype: DType, offset: int) -> Any:
    """The array so many bytes behind an aligned address."""
    import cupy

    packed = PackedArray.pack(host) if dtype.packed else None
    data = (np.ascontiguousarray(host) if packed is None else packed.data).reshape(-1).view(np.uint8)
    there = on_device(np.append(np.zeros(offset, np.uint8), data))[offset:]
    if packed is not None:
        return PackedArray(there, dtype, host.shape)
    return cupy.ndarray(host.shape, dtype.numpy, there.data)


def views(host: np.ndarray, dtype: DType) -> Iterator[tuple[Any, np.ndarray]]:
    """An array on the device in every memory layout, with its elements on the host."""
    there = on_device(host)
    yield there, host
    yield at_byte(host, dtype, 1), host
    if isinstance(there, PackedArray):
        return  # Types below one byte have no strides.
    for place in (slice(None, None, -1), slice(1, None), slice(None, None, 3), slice(-2, 0, -2)):
        if host[place].size:
            yield there[place], host[place]


def check_pair(src: DType, dst: DType, sizes: tuple[int, ...] = SIZES) -> None:
    """Casts of every view, into new arrays, and into one at an odd address."""
    for size in sizes:
        host = random_codes(src, size, size).view(src.numpy)
        for x, same in views(host, src):
            wanted = gpucast.reference.cast(same, dst)
            assert_same(on_host(gpucast.cast(x, dst)), wanted)
        out = at_byte(np.zeros(size, dst.numpy), dst, dst.code_numpy.itemsize)
        assert_same(on_host(gpucast.cast(on_device(host), dst, out=out)), gpucast.reference.cast(host, dst))
