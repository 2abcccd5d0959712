# SPDX-License-Identifier: Apache-2.0
"""A checked cast on one device: CuPy arrays (with the ml_dtypes dtype for types that CuPy lacks) and PackedArrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast import launch
from gpucast.dtypes import DType, dtype
from gpucast.out import apart
from gpucast.packed import PackedArray, home, namespace
from gpucast.rule import Rule, resolve
from gpucast.scaled_source import Scale, scaled_source
from gpucast.source import Shape, kernel_source, square_side
from gpucast.strides import Dims, collapse, squares

_BYTE = np.dtype(np.uint8)


def _device(x: Any) -> int:
    index = home(x)
    assert index is not None, "placement sends device arrays here"
    return index


def new(shape: tuple[int, ...], row: DType) -> Any:
    """An array without set values on the current device: packed, or tagged with the row's dtype."""
    if not row.packed:
        return launch.driver().empty(shape, row.numpy)
    # Past __init__, whose checks take longer than all else here.
    array = object.__new__(PackedArray)
    array.data = launch.driver().empty((row.nbytes(math.prod(shape)),), _BYTE)
    array.dtype, array.shape = row, shape
    return array


def _new_like(x: Any, row: DType) -> Any:
    """An array of x's shape without set values: in the order of x's memory ("K"), row-major where a side is packed."""
    if row.packed or _is_contiguous(x):
        return new(x.shape, row)
    shape, dtype = x.shape, row.numpy
    return launch.driver().empty(shape, dtype, _strides_like(shape, x.strides, dtype.itemsize))


@lru_cache(maxsize=1024)
def _strides_like(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of an array without gaps whose axes follow each other in memory as those of another do."""
    dense = [0] * len(shape)
    slowest_first = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    for axis in slowest_first[::-1]:
        dense[axis] = itemsize
        itemsize *= shape[axis]
    return tuple(dense)


def apply(x: Any, rule: Rule, out: Any = None, scale: float | None = None) -> Any:
    """Cast an array on the device that holds it, on that device's current stream; `out` is on the same device.

    With `scale` the product of x and that number is cast, and `rule` is a `gpucast.scaled_cast.scaled_rule`.

    Allocates nothing with `out`. RuntimeError for what a CUDA graph capture cannot take in.
    """
    driver, device = launch.driver(), _device(x)
    with driver.on(device):
        if out is None:
            if driver.capturing():
                raise RuntimeError(
                    "cast: a CUDA graph is being captured, and memory cannot be allocated then; pass out="
                )
            out = _new_like(x, rule.dst)
        if x.size:
            _launch(x, rule, out, device, scale)
    return out


def short_way(x: Any, rule: Rule) -> Callable[[Any, Any], Any]:
    """The `gpucast.plans.Plan.run` of the casts of arrays of x's kind.

    It takes arrays on the current device where bounds tell that their memory is apart, or that it is one and the same,
    and leaves all else, and all that is wrong, to the whole path. With `out` nothing but the launch asks the driver.
    """
    driver = launch.driver()
    current, capturing, empty, row, tag = driver.current, driver.capturing, driver.empty, rule.dst, rule.dst.numpy
    from_packed, to_packed = isinstance(x, PackedArray), rule.dst.packed
    array: Any = namespace(x.data if from_packed else x).ndarray
    unpacked = rule.src.packed and not from_packed
    src_bits, dst_bits = 8 if unpacked else rule.src.bits, rule.dst.bits
    kernels: dict[int, launch.Kernel] = {}

    def run(x: Any, out: Any) -> Any:
        src = x.data if from_packed else x
        if type(src) is not array:
            return None
        memory, n, flat = src.data, x.size, src._c_contiguous
        device, begin = memory.device_id, memory.ptr
        if current() != device:
            return None
        if out is None:
            if capturing():
                return None
            out = _new_like(x, row) if to_packed or not flat else empty(x.shape, tag)
            dst = out.data if to_packed else out
            target, given = dst.data.ptr, False
        else:
            if to_packed:
                if type(out) is not PackedArray or out.dtype is not row:
                    return None
                dst = out.data
            else:
                dst = out
            # CuPy makes a shape anew each time it is asked.
            if (
                type(dst) is not array
                or (dst.dtype is not tag and not to_packed)
                or ((out.ndim != 1 or x.ndim != 1 or out.size != n) and out.shape != x.shape)
            ):
                return None
            memory = dst.data
            if memory.device_id != device:
                return None
            target, given = memory.ptr, True
            flat = flat and dst._c_contiguous
        if not n:
            return out
        if not flat:
            if given and not apart(src, dst):
                return None
            _launch(x, rule, out, device)
            return out
        if (
            target < begin + (n * src_bits + 7 >> 3)
            and begin < target + (n * dst_bits + 7 >> 3)
            and not (begin == target and src_bits == dst_bits and src.strides == dst.strides)
        ):
            return None
        try:
            kernel = kernels[device]
        except KeyError:
            kernel = kernels[device] = launch.kernel(rule, "contiguous", unpacked, device)
        kernel(begin, target, n, None)
        return out

    return run


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
    if isinstance(x, np.ndarray):
        with driver.on(device):
            return driver.to_device(_plain(x, row)).view(row.numpy).reshape(x.shape)
    source = _device(x)
    with driver.on(source):
        written = driver.stream()
    with driver.on(device):
        # The copy waits for x, and what frees or changes x waits for the copy.
        driver.follow(written, source)
        copy = driver.to_device(x.view(row.code_numpy))
        copied = driver.stream()
    with driver.on(source):
        driver.follow(copied, device)
    return copy.view(row.numpy).reshape(x.shape)


def _plain(x: np.ndarray[Any, Any], row: DType) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(x, dtype=row.numpy).reshape(-1).view(row.code_numpy)


def row_of(x: Any) -> DType:
    """The row of an array's dtype."""
    return dtype(x.dtype)


def _copy(x: Any) -> Any:
    """A C-contiguous copy on the same device. CuPy's own copy refuses dtypes that it does not know."""
    # Types below one byte lie one element per byte here: as plain bytes they stay so.
    row = dtype("UINT8") if row_of(x).packed else row_of(x)
    copy = launch.driver().empty(x.shape, row.numpy)
    apply(x.view(row.numpy), resolve(row, row), copy)
    return copy.view(x.dtype)


def _launch(x: Any, rule: Rule, out: Any, device: int, scale: float | None = None) -> None:
    flat = _is_contiguous(x) and _is_contiguous(out)
    dims = None if flat else _dims(x.shape, _strides(x), _strides(out), _itemsize(x), _itemsize(out))
    unpacked = rule.src.packed and not isinstance(x, PackedArray)
    shape: Shape = "contiguous" if dims is None else "strided"
    n = x.size
    if scale is None and dims is not None and not (isinstance(x, PackedArray) or isinstance(out, PackedArray)):
        transpose = squares(dims, x.itemsize, out.itemsize, square_side(8 * x.itemsize, 8 * out.itemsize))
        if transpose is not None:
            shape, (dims, n) = "transposed", transpose
    make, more = (kernel_source, dims) if scale is None else (scaled_source, Scale(scale, dims))
    launch.kernel(rule, shape, unpacked, device, make)(_address(x), _address(out), n, more)


@lru_cache(maxsize=1024)
def _dims(
    shape: tuple[int, ...],
    src_strides: tuple[int, ...] | None,
    dst_strides: tuple[int, ...] | None,
    src_itemsize: int,
    dst_itemsize: int,
) -> Dims | None:
    """The dimensions of a strided cast; None where both sides turn out to be contiguous in the same order.

    A packed side has no strides, and elements of one byte stand for its own: only neighbours' ratios matter.
    """
    axes = list(range(len(shape)))
    if src_strides is not None and dst_strides is not None:
        # Any order will do, and the destination's makes long writes; a packed side is the row-major stream.
        axes.sort(key=lambda axis: -abs(dst_strides[axis]))
    row_major = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    src, dst = ([(strides or row_major)[axis] for axis in axes] for strides in (src_strides, dst_strides))
    dims = collapse([shape[axis] for axis in axes], src, dst)
    return None if not dims.lengths or (dims.src, dims.dst) == ((src_itemsize,), (dst_itemsize,)) else dims


def _is_contiguous(x: Any) -> bool:
    return isinstance(x, PackedArray) or bool(x._c_contiguous)


def _address(x: Any) -> int:
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)


def _strides(x: Any) -> tuple[int, ...] | None:
    return None if isinstance(x, PackedArray) else x.strides


def _itemsize(x: Any) -> int:
    return 1 if isinstance(x, PackedArray) else x.itemsize
