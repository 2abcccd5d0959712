# SPDX-License-Identifier: Apache-2.0
"""One checked array, with the facts that host and device casts need. Checks of an `out` array: the kind, dtype and
shape of the result, and no memory shared with the source."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.packed import PackedArray, device_index, unmasked
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import CastRule


@dataclass(slots=True, eq=False)
class Operand:
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
        """Bytes of an element; 1 for a PackedArray, where only ratios of strides matter."""
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


def check_out(source: Operand, rule: CastRule, out: Any, remote: bool, caller: str) -> Operand:
    """Check that `out` can take the result of a cast, and return its operand. TypeError or ValueError if it cannot.

    `remote`: the result may be on a device.
    """
    packed = rule.dst.packed and (source.packed or (remote and device_index(out) is not None))
    if packed != isinstance(out, PackedArray) or not (packed or namespace(out)):
        wanted = "a PackedArray" if packed else "a NumPy array" if not remote else "an array"
        expected = f"{wanted} of {rule.dst.name} and shape {source.shape}"
        raise TypeError(f"{caller}: out is {type(out).__name__}; expected {expected}")
    unmasked(out, f"{caller}: out")
    if out.dtype != (rule.dst if packed else rule.dst.numpy):
        raise TypeError(f"{caller}: out has dtype {out.dtype}; expected {rule.dst if packed else rule.dst.numpy}")
    if out.shape != source.shape:
        raise ValueError(f"{caller}: out has shape {out.shape}; expected {source.shape}")
    target = operand(out, rule.dst)
    x, y = source.data, target.data
    if target.device is None and not y.flags.writeable:
        raise ValueError(f"{caller}: out is read-only")
    if shares_within(y.shape, y.strides, y.itemsize):
        raise ValueError(f"{caller}: elements of out share memory; expected one place for each")
    if (source.device is None) == (target.device is None) and _bounds_meet(x, y):
        x, y = _footprint(x), _footprint(y)
        if _overlap(x, y) and not _same_layout(x, y):
            raise ValueError(
                f"{caller}: out overlaps x; expected separate memory, or exactly x's own elements of equal size"
            )
    return target


# The arrays below are those of NumPy, or of CuPy, that hold the bytes: `Operand.data`.


def disjoint(x: Any, out: Any) -> bool:
    """True where bounds alone tell that no element of `out` (CuPy arrays both) shares memory with another or with x."""
    return not (shares_within(out.shape, out.strides, out.itemsize) or _bounds_meet(x, out))


@lru_cache(maxsize=1024)
def shares_within(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether elements of one array may share memory.

    False if each stride, from the shortest to the longest, steps over everything that shorter ones reach."""
    reached, empty = itemsize, 0 in shape
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride < reached and not empty:
            return True
        reached += stride * (length - 1)
    return False


def _bounds_meet(x: Any, out: Any) -> bool:
    """Whether the bytes from the first to the last one of two arrays have any in common."""
    if isinstance(x, np.ndarray):
        return np.may_share_memory(x, out)
    (x_begin, x_end), (begin, end) = (bounds(array.shape, array.strides, array.itemsize) for array in (x, out))
    distance = out.data.ptr - x.data.ptr
    return bool(x_begin < distance + end and distance + begin < x_end)


def share_memory(x: Any, other: Any) -> bool:
    """Whether two arrays in one place have memory in common; True too where that would take long to find out."""
    return _bounds_meet(x, other) and _overlap(_footprint(x), _footprint(other))


def check_written(
    written: Sequence[tuple[str, Any]],
    read: Iterable[tuple[str, Any]],
    caller: str,
    common: Container[str] = (),
) -> None:
    """ValueError for arrays, with their names, that cannot be written whole and separately.

    `read`: arrays that are read. `common`: names that may occur twice, for the same array.
    """
    read = list(read)
    for name, part in written:
        if not part.flags.c_contiguous:
            raise ValueError(f"{caller}: {name} is not contiguous; expected C order")
        if isinstance(part, np.ndarray) and not part.flags.writeable:
            raise ValueError(f"{caller}: {name} is read-only")
        for other, x in read:
            if share_memory(part, x):
                raise ValueError(f"{caller}: {name} shares memory with {other}; expected separate memory")
    for (one, a), (other, b) in itertools.combinations(written, 2):
        is_common = one == other and one in common and (a is b or _same_layout(_footprint(a), _footprint(b)))
        if not is_common and share_memory(a, b):
            raise ValueError(f"{caller}: {one} shares memory with {other}; expected separate memory")


@lru_cache(maxsize=1024)
def bounds(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Bytes from the address of an array to its first byte (0 or less), and to the one behind its last."""
    if 0 in shape:
        return 0, 0
    steps = [stride * (length - 1) for stride, length in zip(strides, shape, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


def _footprint(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy array over the same addresses, never to be read: NumPy's overlap check looks at addresses alone."""
    if isinstance(x, np.ndarray):
        return x

    class Interface:
        __array_interface__: ClassVar[dict[str, Any]] = {
            "version": 3,
            "typestr": f"|V{x.dtype.itemsize}",
            "shape": x.shape,
            "strides": x.strides,
            "data": (x.data.ptr, True),
        }

    return np.asarray(Interface())


def _overlap(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(x, out, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_layout(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> bool:
    """True where element i of both is the same memory."""
    one, other = x.__array_interface__["data"][0], out.__array_interface__["data"][0]
    return one == other and x.itemsize == out.itemsize and x.strides == out.strides and x.shape == out.shape
