# SPDX-License-Identifier: Apache-2.0
"""One checked array: the facts that host and device casts need, found out once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpucast.arrays.packed import PackedArray, device_index
from gpucast.core.dtypes import DType, dtype


@dataclass(slots=True, eq=False)
class Operand:
    """An array of NumPy or CuPy, or a PackedArray over one, as the source or the target of a cast.

    Its fields never change. (To freeze them would make a small cast with strides 5 % slower.)
    """

    #: As callers have it.
    array: Any
    #: The array that holds the bytes: `array` itself, without its subclass, or the flat bytes of a PackedArray.
    data: Any
    #: Byte order is that of ``data.dtype``.
    dtype: DType
    shape: tuple[int, ...]
    size: int
    #: In bytes; None for a PackedArray, whose elements are a row-major stream of bits.
    strides: tuple[int, ...] | None
    #: The index of the device that holds it; None for the host.
    device: int | None
    packed: bool

    @property
    def plain(self) -> Any:
        """`array` without its subclass, because subclasses such as np.matrix change reshaping and assignment."""
        return self.array if self.packed else self.data

    @property
    def address(self) -> int:
        """The address of the first element."""
        return int(self.data.ctypes.data if self.device is None else self.data.data.ptr)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 1 for a PackedArray, of which only the ratios of strides matter."""
        return 1 if self.packed else int(self.data.itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if self.packed:
            return True
        # CuPy makes an object of the flags.
        return bool(self.data.flags.c_contiguous if self.device is None else self.data._c_contiguous)


def operand(x: Any, known: DType | None = None) -> Operand:
    """The operand of an array from `gpucast.arrays.packed.as_array`; `known` is its dtype, if the caller knows it.

    TypeError for a dtype that Cast does not take.
    """
    kind = dtype(x.dtype) if known is None else known
    if type(x) is np.ndarray:
        return Operand(x, x, kind, x.shape, x.size, x.strides, None, False)
    packed, device = isinstance(x, PackedArray), device_index(x)
    data = x.data if packed else x if device is not None else np.asarray(x)
    return Operand(x, data, kind, x.shape, x.size, None if packed else data.strides, device, packed)


def result_like(source: Operand, array: Any, kind: DType) -> Operand:
    """Allocate the result of a cast of `source`: an array of this dtype, of the same shape and in the same place."""
    packed = isinstance(array, PackedArray)
    data = array.data if packed else array
    return Operand(
        array, data, kind, source.shape, source.size, None if packed else data.strides, source.device, packed
    )
