# SPDX-License-Identifier: Apache-2.0
"""A checked cast on one device: CuPy arrays (with the ml_dtypes dtype for types that CuPy lacks) and PackedArrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpucast import launch
from gpucast.dtypes import DType, dtype
from gpucast.packed import PackedArray, home
from gpucast.rule import Rule, resolve
from gpucast.strides import Dims, collapse


def _device(x: Any) -> int:
    index = home(x)
    assert index is not None, "placement sends device arrays here"
    return index


def new(shape: tuple[int, ...], row: DType) -> Any:
    """An array without set values on the current device: packed, or tagged with the row's dtype."""
    if row.packed:
        return PackedArray(launch.driver().empty((row.nbytes(math.prod(shape)),), np.dtype(np.uint8)), row, shape)
    return launch.driver().empty(shape, row.code_numpy).view(row.numpy)


def apply(x: Any, rule: Rule, out: Any = None) -> Any:
    """Cast an array on the device that holds it, on that device's current stream; `out` is on the same device.

    Allocates nothing with `out`. RuntimeError for what a CUDA graph capture cannot take in.
    """
    driver, device = launch.driver(), _device(x)
    with driver.on(device):
        stream = driver.stream()
        if out is None:
            if driver.capturing(stream):
                raise RuntimeError(
                    "cast: a CUDA graph is being captured, and memory cannot be allocated then; pass out="
                )
            order = _memory_order(x, rule)
            shape = tuple(x.shape[axis] for axis in order)
            out = new(shape, rule.dst)
            if order != sorted(order):
                out = out.transpose([order.index(axis) for axis in range(len(order))])
        if x.size:
            _launch(x, rule, out, device, stream)
    return out


def to_host(x: Any) -> Any:
    """A copy in host memory: NumPy with the row's dtype, or a PackedArray."""
    driver, device = launch.driver(), _device(x)
    with driver.on(device):
        if isinstance(x, PackedArray):
            return PackedArray(driver.to_host(x.data), x.dtype, x.shape)
        if not x.flags.c_contiguous:
            x = _copy(x)
        row = row_of(x)
        return driver.to_host(x.view(row.code_numpy)).view(row.numpy).reshape(x.shape)


def to_device(x: Any, device: int) -> Any:
    """A copy on a device of a host array or of an array on another device."""
    driver = launch.driver()
    if isinstance(x, PackedArray):
        return PackedArray(to_device(x.data, device), x.dtype, x.shape)
    if not isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        with driver.on(_device(x)):
            x = _copy(x)
    row = row_of(x)
    plain = x.view(row.code_numpy) if not isinstance(x, np.ndarray) else _plain(x, row)
    with driver.on(device):
        return driver.to_device(plain).view(row.numpy).reshape(x.shape)


def _plain(x: np.ndarray[Any, Any], row: DType) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(x, dtype=row.numpy).reshape(-1).view(row.code_numpy)


def row_of(x: Any) -> DType:
    """The row of an array's dtype."""
    return dtype(x.dtype)


def _copy(x: Any) -> Any:
    """A C-contiguous copy on the same device. CuPy's own copy refuses dtypes that it does not know."""
    # Types below one byte lie one element per byte here: as plain bytes they stay so.
    row = dtype("UINT8") if row_of(x).packed else row_of(x)
    copy = launch.driver().empty(x.shape, row.code_numpy).view(row.numpy)
    apply(x.view(row.numpy), resolve(row, row), copy)
    return copy.view(x.dtype)


def _memory_order(x: Any, rule: Rule) -> list[int]:
    """The axes from the slowest to the quickest in x's memory (order "K"); row-major where a side is packed."""
    axes = list(range(len(x.shape)))
    if isinstance(x, PackedArray) or rule.dst.packed:
        return axes
    return sorted(axes, key=lambda axis: -abs(x.strides[axis]))


def _launch(x: Any, rule: Rule, out: Any, device: int, stream: int) -> None:
    dims = None if _is_contiguous(x) and _is_contiguous(out) else _dims(x, out)
    unpacked = rule.src.packed and not isinstance(x, PackedArray)
    kernel = launch.plan(rule, "contiguous" if dims is None else "strided", unpacked, device)
    kernel(_address(x), 0, _address(out), x.size, dims, stream)


def _dims(x: Any, out: Any) -> Dims | None:
    """The dimensions of a strided cast; None where both sides turn out to be contiguous in the same order."""
    packed_src, packed_dst = isinstance(x, PackedArray), isinstance(out, PackedArray)
    axes = list(range(len(x.shape)))
    if not (packed_src or packed_dst):
        # Any order will do, and the destination's makes long writes; a packed side is the row-major stream.
        axes.sort(key=lambda axis: -abs(out.strides[axis]))
    src, dst = ([strides[axis] for axis in axes] for strides in (_strides(x), _strides(out)))
    dims = collapse([x.shape[axis] for axis in axes], src, dst)
    if not dims.lengths:
        return None
    one = (1 if packed_src else x.itemsize,), (1 if packed_dst else out.itemsize,)
    return None if (dims.src, dims.dst) == one else dims


def _is_contiguous(x: Any) -> bool:
    return isinstance(x, PackedArray) or bool(x.flags.c_contiguous)


def _address(x: Any) -> int:
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)


def _strides(x: Any) -> tuple[int, ...]:
    if not isinstance(x, PackedArray):
        return tuple(x.strides)
    # Only neighbours' ratios matter: elements of one byte stand for those of a packed array.
    return tuple(math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim))
