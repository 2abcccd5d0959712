# SPDX-License-Identifier: Apache-2.0
"""One checked array, with the facts that host and device casts need. Checks of an `out` array: the kind, dtype and
shape of the result, and no memory shared with the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.arrays.bitpacking import is_writable, namespace
from gpucast.arrays.overlap import Place, bounds_meet, check_disjoint, footprint, footprints_overlap, shares_within
from gpucast.arrays.packed import PackedArray, unmasked
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule


@dataclass(slots=True, eq=False)
class Array:
    """An array of NumPy or CuPy, or a PackedArray over one, as the source or the target of a cast.

    Its fields never change. (To freeze them would make a small cast with strides 5 % slower.)
    """

    #: As callers have it.
    array: Any
    #: The array that holds the bytes: `array` itself, without its subclass, or the flat bytes of a PackedArray.
    data: Any
    #: ``data.dtype`` has the byte order.
    dtype: DType
    shape: tuple[int, ...]
    size: int
    #: In bytes; None for a PackedArray, whose elements are a row-major stream of bits.
    strides: tuple[int, ...] | None
    #: The index of the device that holds it; None for the host.
    device: int | None
    packed: bool

    @staticmethod
    def of(x: Any, known: DType | None = None) -> Array:
        """Describe an array from `gpucast.arrays.packed.as_array`; `known` is its dtype, if the caller knows it.

        TypeError for a dtype that Cast does not take.
        """
        kind = dtype(x.dtype) if known is None else known
        if type(x) is np.ndarray:
            return Array(x, x, kind, x.shape, x.size, x.strides, None, False)
        packed, device = isinstance(x, PackedArray), None
        data = x.data if packed else x
        if isinstance(data, np.ndarray):
            data = np.asarray(data)
        else:
            # As data.device.id, which makes an object.
            device = int(data.data.device_id)
        return Array(x, data, kind, x.shape, x.size, None if packed else data.strides, device, packed)

    @property
    def address(self) -> int:
        """The address of the first element."""
        return int(self.data.ctypes.data if isinstance(self.data, np.ndarray) else self.data.data.ptr)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 1 for a PackedArray, where only ratios of strides matter."""
        return 1 if self.packed else int(self.data.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if self.packed:
            return True
        return bool(self.data.flags.c_contiguous)


def result_like(source: Array, array: Any, kind: DType) -> Array:
    """Allocate the result of a cast of `source`: an array of this dtype, of the same shape and in the same place."""
    packed = isinstance(array, PackedArray)
    data = array.data if packed else array
    return Array(array, data, kind, source.shape, source.size, None if packed else data.strides, source.device, packed)


def check_out(source: Array, rule: CastRule, out: Any, packs: bool, caller: str) -> Array:
    """Check that `out` can take the result of a cast, and return it as an Array. `packs`: packed types are packed
    whatever the source. TypeError or ValueError if it cannot."""
    packed = rule.dst.packed and (source.packed or packs)
    if packed != isinstance(out, PackedArray) or not (packed or namespace(out)):
        expected = f"{'a PackedArray' if packed else 'an array'} of {rule.dst.name} and shape {source.shape}"
        raise TypeError(f"{caller}: out is {type(out).__name__}; expected {expected}")
    unmasked(out, f"{caller}: out")
    if out.dtype != (rule.dst if packed else rule.dst.numpy):
        raise TypeError(f"{caller}: out has dtype {out.dtype}; expected {rule.dst if packed else rule.dst.numpy}")
    if out.shape != source.shape:
        raise ValueError(f"{caller}: out has shape {out.shape}; expected {source.shape}")
    target = Array.of(out, rule.dst)
    x, y = source.data, target.data
    if not is_writable(y):
        raise ValueError(f"{caller}: out is read-only")
    if shares_within(y.shape, y.strides, y.itemsize):
        raise ValueError(f"{caller}: elements of out share memory; expected one place for each")
    if isinstance(x, np.ndarray) == isinstance(y, np.ndarray) and bounds_meet(x, y):
        x, y = footprint(x), footprint(y)
        if footprints_overlap(x, y) and not _same_layout(x, y):
            raise ValueError(
                f"{caller}: out overlaps x; expected separate memory, or exactly x's own elements of equal size"
            )
    return target


def check_written(written: Sequence[Place], read: Sequence[Place], caller: str) -> None:
    """ValueError for arrays that cannot be written whole, and separately from each other and from `read`."""
    for place in written:
        if not place.data.flags.c_contiguous:
            raise ValueError(f"{caller}: {place.name} is not contiguous; expected C order")
        if not is_writable(place.data):
            raise ValueError(f"{caller}: {place.name} is read-only")
    check_disjoint(written, read, caller)


def _same_layout(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> bool:
    """True where element i of both is the same memory."""
    one, other = x.__array_interface__["data"][0], out.__array_interface__["data"][0]
    return one == other and x.itemsize == out.itemsize and x.strides == out.strides and x.shape == out.shape
