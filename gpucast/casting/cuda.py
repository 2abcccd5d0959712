# SPDX-License-Identifier: Apache-2.0
"""A checked cast on one device: CuPy arrays (with the ml_dtypes dtype for types that CuPy lacks) and PackedArrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpucast.arrays.array import Array, result_like
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.casting.engine import Call
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import EMPTY, Fuse
from gpucast.core.rule import resolve
from gpucast.kernel import driver
from gpucast.kernel.cast_kernel import Shape, square_sides
from gpucast.kernel.fused_kernel import FUSED, FusedOps, cast_kernel
from gpucast.kernel.strides import Dims, collapse, squares

_BYTE = np.dtype(np.uint8)
_LAST = 2**64 - 1


# ---- memory ----


def new(shape: tuple[int, ...], kind: DType) -> Any:
    """An array without set values on the current device: packed, or tagged with NumPy's dtype."""
    if not kind.packed:
        return driver.empty(shape, kind.numpy)
    return packed(driver.empty((kind.nbytes(math.prod(shape)),), _BYTE), kind, shape)


def packed(data: Any, kind: DType, shape: tuple[int, ...]) -> PackedArray:
    """A PackedArray past __init__, whose checks take longer than a small cast."""
    array = object.__new__(PackedArray)
    array.data, array.dtype, array.shape = data, kind, shape
    return array


def new_strided(shape: tuple[int, ...], strides: tuple[int, ...], kind: DType) -> Any:
    """The same for whole bytes, without gaps, with the axes in the order in memory that `strides` have ("K")."""
    dtype = kind.numpy
    return driver.empty(shape, dtype, _strides_like(shape, strides, dtype.itemsize))


@lru_cache(maxsize=1024)
def _strides_like(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of an array without gaps whose axes have the same order in memory as another array's."""
    dense = [0] * len(shape)
    slowest_first = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    for axis in slowest_first[::-1]:
        dense[axis] = itemsize
        itemsize *= shape[axis]
    return tuple(dense)


def empty_like(source: Array, kind: DType) -> Array:
    """Memory on the current device for a cast of `source`: in the order of its memory, row-major where a side is
    packed. Errors as for `check_allocation`."""
    check_allocation()
    if kind.packed or source.strides is None or source.contiguous:
        return result_like(source, new(source.shape, kind), kind)
    return result_like(source, new_strided(source.shape, source.strides, kind), kind)


def check_allocation() -> None:
    """RuntimeError while a CUDA graph is captured."""
    if driver.driver().capturing():
        raise RuntimeError("cast: a CUDA graph is being captured, and memory cannot be allocated then; pass out=")


def is_contiguous(x: Any) -> bool:
    """`Array.contiguous` of an array on a device, for callers that need nothing else of it."""
    return isinstance(x, PackedArray) or bool(x._c_contiguous)


def is_aligned(x: Any, alignment: int = 0) -> bool:
    """Whether an array on a device begins at a multiple of so many bytes; 0: of those of an element, which are the
    least that a kernel accesses at a time unless it says otherwise. Every kernel's arrays are judged here."""
    if not alignment:
        alignment = 1 if isinstance(x, PackedArray) else x.itemsize
    return address(x) % alignment == 0


def address(x: Any) -> int:
    """`Array.address` of an array on a device, for callers that need nothing else of it."""
    return int((x.data if isinstance(x, PackedArray) else x).data.ptr)


# ---- casts ----


def launch_of(call: Call) -> Callable[[], None]:
    """The launch of a call with elements and a target on the current device, whose kernel is loaded by now."""
    source, rule, target, fuse = call.source, call.rule, call.written, call.fuse
    assert source.device is not None
    layout = layout_of(source, target, fuse)
    ops = FusedOps.of(fuse)
    given = FUSED.pack(*fused_values(fuse)) if ops.fuses(rule) else b""
    if layout.dims is not None:
        given += layout.dims.packed
    kernel = cast_kernel(rule, layout.shape, rule.src.packed and not source.packed, ops)
    src, dst, n = source.address, target.address, layout.n
    launch = driver.load(kernel, source.device)
    return partial(launch, kernel.blocks(n, dst), driver.array_arguments(src, 0, dst, n) + given)


class Layout(NamedTuple):
    """How a kernel walks over source and target."""

    shape: Shape
    #: None for the shape "contiguous".
    dims: Dims | None
    #: As kernels take it: elements, or those of all squares.
    n: int


def layout_of(source: Array, target: Array, fuse: Fuse) -> Layout:
    """The layout of a cast. It is contiguous where both sides are, in the same order of axes."""
    if source.contiguous and target.contiguous:
        return Layout("contiguous", None, source.size)
    in_order = fuse.random is not None
    transposes = fuse is EMPTY and not (source.packed or target.packed)
    sizes = source.itemsize, target.itemsize
    return strided_layout(source.shape, source.strides, target.strides, sizes, in_order, transposes)


@lru_cache(maxsize=1024)
def strided_layout(
    shape: tuple[int, ...],
    src_strides: tuple[int, ...] | None,
    dst_strides: tuple[int, ...] | None,
    itemsizes: tuple[int, int],
    in_order: bool,
    transposes: bool,
) -> Layout:
    """The layout where one side at least is not contiguous; it is "contiguous" all the same where both have their axes
    in the same order, without gaps.

    A packed side has no strides (None) and an itemsize of 1: as only the ratios of strides matter, it counts as bytes
    in row-major order. `in_order`: elements are to be visited in row-major order, because random words belong to their
    indices in it. `transposes`: there is a kernel of the shape "transposed".
    """
    axes = list(range(len(shape)))
    if src_strides is not None and dst_strides is not None and not in_order:
        # Any order will do, and the destination's makes long writes; a packed side is the row-major stream.
        axes.sort(key=lambda axis: -abs(dst_strides[axis]))
    row_major = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    src, dst = ([(strides or row_major)[axis] for axis in axes] for strides in (src_strides, dst_strides))
    dims = collapse([shape[axis] for axis in axes], src, dst)
    n = math.prod(shape)
    if not dims.lengths or (dims.src, dims.dst) == ((itemsizes[0],), (itemsizes[1],)):
        return Layout("contiguous", None, n)
    if transposes:
        src_size, dst_size = itemsizes
        transposed = squares(dims, src_size, dst_size, square_sides(8 * src_size, 8 * dst_size))
        if transposed is not None:
            return Layout("transposed", *transposed)
    return Layout("strided", dims, n)


def fused_values(fuse: Fuse) -> tuple[float, int, int, int, int, int, int]:
    """The values of `FUSED`."""
    number, scale_at = 1.0, 0
    if isinstance(fuse.scale, float):
        number = fuse.scale
    elif fuse.scale is not None:
        scale_at = fuse.scale.data.ptr
    amax, finite = (0 if array is None else array.data.ptr for array in (fuse.amax, fuse.finite))
    seed, offset = fuse.random or (0, 0)
    # In `cast_many` the random words of one array follow those of the one before: the offset may be beyond 64 bits.
    first = max(0, offset - _LAST)
    return number, scale_at, amax, finite, seed, offset - first, first


# ---- copies over the bus, and from device to device ----


def to_host(x: Any) -> Any:
    """A copy in host memory: NumPy, with ml_dtypes where NumPy lacks the type, or a PackedArray."""
    driver.moves()
    cuda = driver.driver()
    with cuda.on(_index(x)):
        if isinstance(x, PackedArray):
            return PackedArray(cuda.to_host(x.data), x.dtype, x.shape)
        if not x.flags.c_contiguous:
            x = _copy(x)
        kind = dtype(x.dtype)
        return cuda.to_host(x.view(kind.code_numpy)).view(kind.numpy).reshape(x.shape)


def to_device(x: Any, device: int) -> Any:
    """A copy on a device of a host array or of an array on another device."""
    driver.moves()
    cuda = driver.driver()
    if isinstance(x, PackedArray):
        return PackedArray(to_device(x.data, device), x.dtype, x.shape)
    if not isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        with cuda.on(_index(x)):
            x = _copy(x)
    kind = dtype(x.dtype)
    if isinstance(x, np.ndarray):
        codes = np.ascontiguousarray(x, dtype=kind.numpy).reshape(-1).view(kind.code_numpy)
        with cuda.on(device):
            return cuda.to_device(codes).view(kind.numpy).reshape(x.shape)
    source = _index(x)
    with cuda.on(source):
        written = cuda.stream()
    with cuda.on(device):
        # The copy waits for x, and what frees or changes x waits for the copy.
        cuda.follow(written, source)
        copy = cuda.to_device(x.view(kind.code_numpy))
        copied = cuda.stream()
    with cuda.on(source):
        cuda.follow(copied, device)
    return copy.view(kind.numpy).reshape(x.shape)


def _copy(x: Any) -> Any:
    """A C-contiguous copy on the same device. CuPy's own copy refuses dtypes that it does not know."""
    # Types below one byte lie one element per byte here: as plain bytes they stay so.
    kind = dtype("UINT8") if dtype(x.dtype).packed else dtype(x.dtype)
    copy = new(x.shape, kind)
    if x.size:
        launch_of(Call("copy", Array.of(x.view(kind.numpy), kind), resolve(kind, kind), target=Array.of(copy, kind)))()
    return copy.view(x.dtype)


def _index(x: Any) -> int:
    index = device_index(x)
    assert index is not None, "only arrays on a device come here"
    return index
