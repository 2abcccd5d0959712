# SPDX-License-Identifier: Apache-2.0
"""A checked cast on one device: CuPy arrays (with the ml_dtypes dtype for types that CuPy lacks) and PackedArrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.overlap import apart
from gpucast.arrays.packed import PackedArray, home
from gpucast.codegen.cast import Shape, square_side
from gpucast.codegen.fused import FusedArguments, FusedOps
from gpucast.codegen.spec import CastSpec
from gpucast.codegen.strides import Dims, collapse, squares
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import Fusion
from gpucast.core.rule import Rule, resolve
from gpucast.gpu import driver as launch

_BYTE = np.dtype(np.uint8)
_LAST = 2**64 - 1


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
    if row.packed or is_contiguous(x):
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


def apply(x: Any, rule: Rule, out: Any = None, fusion: Fusion | None = None) -> Any:
    """Cast an array on the device that holds it, on that device's current stream; `out` is on the same device.

    With a `fusion` more is done in the same pass, and `rule` is a `gpucast.casting.fused.fused_rule`.

    Allocates nothing with `out`. RuntimeError for what a CUDA graph capture cannot take in.
    """
    driver, device = launch.driver(), _device(x)
    with driver.on(device):
        if out is None:
            out = room(x, rule.dst)
        if x.size:
            kernel, arguments = launch_of(x, rule, out, device, fusion)
            kernel(*arguments)
    return out


def room(x: Any, row: DType) -> Any:
    """Memory on the current device for a cast of x; RuntimeError while a CUDA graph is captured."""
    if launch.driver().capturing():
        raise RuntimeError("cast: a CUDA graph is being captured, and memory cannot be allocated then; pass out=")
    return _new_like(x, row)


def short_way(x: Any, rule: Rule) -> Callable[[Any, Any], Any]:
    """The `gpucast.casting.plan_cache.Plan.run` of the casts of arrays of x's kind.

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
            kernel, arguments = launch_of(x, rule, out, device)
            kernel(*arguments)
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
            kernel = kernels[device] = launch.kernel(CastSpec(rule, "contiguous", unpacked), device)
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


def launch_of(
    x: Any, rule: Rule, out: Any, device: int, fusion: Fusion | None = None
) -> tuple[launch.Kernel, tuple[Any, ...]]:
    """The kernel, loaded, that casts an array with elements on the current device, and its arguments."""
    dims = dims_of(x, out, fusion is not None and fusion.random is not None)
    unpacked = rule.src.packed and not isinstance(x, PackedArray)
    shape: Shape = "contiguous" if dims is None else "strided"
    n = x.size
    if fusion is None and dims is not None and not (isinstance(x, PackedArray) or isinstance(out, PackedArray)):
        transpose = squares(dims, x.itemsize, out.itemsize, square_side(8 * x.itemsize, 8 * out.itemsize))
        if transpose is not None:
            shape, (dims, n) = "transposed", transpose
    ops: FusedOps | None = None
    more: Dims | FusedArguments | None = dims
    if fusion is not None:
        ops, more = fused_kernel(fusion, dims)
    return launch.cast_kernel(rule, shape, unpacked, ops, device), (address(x), address(out), n, more)


def dims_of(x: Any, out: Any, in_order: bool) -> Dims | None:
    """The dimensions of a cast, for the strided kernels; None where both sides are contiguous in the same order.

    `in_order` where it matters which element is which one of the row-major order.
    """
    if is_contiguous(x) and is_contiguous(out):
        return None
    return _dims(x.shape, _strides(x), _strides(out), _itemsize(x), _itemsize(out), in_order)


def fused_kernel(fusion: Fusion, dims: Dims | None) -> tuple[FusedOps, FusedArguments]:
    """The operations of a fused kernel, and its last argument."""
    number, scale_at = 1.0, 0
    if isinstance(fusion.scale, float):
        number = fusion.scale
    elif fusion.scale is not None:
        scale_at = address(fusion.scale)
    amax, finite = (0 if array is None else address(array) for array in (fusion.amax, fusion.finite))
    seed, offset = fusion.random or (0, 0)
    # Of `cast_many`, whose arrays go on in one stream, the offset may be beyond 64 bits.
    first = max(0, offset - _LAST)
    ops = FusedOps(fusion.scaling, fusion.amax is not None, fusion.finite is not None)
    return ops, FusedArguments(number, scale_at, amax, finite, seed, offset - first, first, dims)


@lru_cache(maxsize=1024)
def _dims(
    shape: tuple[int, ...],
    src_strides: tuple[int, ...] | None,
    dst_strides: tuple[int, ...] | None,
    src_itemsize: int,
    dst_itemsize: int,
    in_order: bool,
) -> Dims | None:
    """The dimensions of a strided cast; None where both sides turn out to be contiguous in the same order.

    A packed side has no strides, and elements of one byte stand for its own: only neighbours' ratios matter. `in_order`
    where it matters which element is which one of the row-major order.
    """
    axes = list(range(len(shape)))
    if src_strides is not None and dst_strides is not None and not in_order:
        # Any order will do, and the destination's makes long writes; a packed side is the row-major stream.
        axes.sort(key=lambda axis: -abs(dst_strides[axis]))
    row_major = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    src, dst = ([(strides or row_major)[axis] for axis in axes] for strides in (src_strides, dst_strides))
    dims = collapse([shape[axis] for axis in axes], src, dst)
    return None if not dims.lengths or (dims.src, dims.dst) == ((src_itemsize,), (dst_itemsize,)) else dims


def is_contiguous(x: Any) -> bool:
    """Whether an array on a device lies in row-major order without gaps."""
    return isinstance(x, PackedArray) or bool(x._c_contiguous)


def address(x: Any) -> int:
    """Where the elements of an array on a device begin."""
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)


def _strides(x: Any) -> tuple[int, ...] | None:
    return None if isinstance(x, PackedArray) else x.strides


def _itemsize(x: Any) -> int:
    return 1 if isinstance(x, PackedArray) else x.itemsize
