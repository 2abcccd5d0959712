# SPDX-License-Identifier: Apache-2.0
"""Memory that arrays share: the one check that written arrays are disjoint, and the bounds that fast paths ask for.

Arrays here are those of NumPy or CuPy that hold the bytes (`gpucast.arrays.array.Array.data`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from gpucast.arrays.bitpacking import address_of
from gpucast.arrays.packed import PackedArray, device_index

#: Up to so many pairs of arrays are compared one by one; of more, the bounds of all are sorted first.
_FEW = 64


@dataclass(frozen=True, slots=True)
class Place:
    """An array under its name in error messages."""

    name: str
    #: An array, or a PackedArray over one.
    array: Any
    #: The number of an item in its batch, whose source and destination may share memory; None for any other array.
    item: int | None = None

    @property
    def data(self) -> Any:
        """The array that holds the bytes."""
        return self.array.data if isinstance(self.array, PackedArray) else self.array

    def may_share(self, other: Place) -> bool:
        """Whether both belong to one item."""
        return self.item is not None and self.item == other.item


def check_disjoint(written: Sequence[Place], read: Sequence[Place], caller: str) -> None:
    """Raise a ValueError where an array that is written shares memory with another one of the call.

    `gpucast.arrays.array.check_out` looks at source and destination of one item, and at elements within one array.
    """
    if len(written) * (len(written) + len(read)) <= _FEW:
        for i, place in enumerate(written):
            for other in (*written[i + 1 :], *read):
                if device_index(place.array) == device_index(other.array) and bounds_meet(place.data, other.data):
                    _check_pair(place, other, caller)
        return
    by_device: dict[int | None, list[_Span]] = {}
    for i, place in enumerate((*written, *read)):
        x = place.data
        if x.size:
            begin, end = bounds(x.shape, x.strides, x.itemsize)
            address = address_of(x)
            by_device.setdefault(device_index(x), []).append((address + begin, address + end, i, place))
    for spans in by_device.values():
        spans.sort(key=itemgetter(0))
        # Those that begin before the next one, and end behind its beginning.
        targets: list[_Span] = []
        sources: list[_Span] = []
        for span in spans:
            begin, is_written = span[0], span[2] < len(written)
            targets = [one for one in targets if one[1] > begin]
            if is_written:
                sources = [one for one in sources if one[1] > begin]
            for met in [*targets, *sources] if is_written else targets:
                first, second = (span, met) if span[2] < met[2] else (met, span)
                _check_pair(first[3], second[3], caller)
            (targets if is_written else sources).append(span)


#: The first byte of an array, the one behind its last, its number in the call, and itself.
_Span = tuple[int, int, int, Place]


def _check_pair(place: Place, other: Place, caller: str) -> None:
    """Look at elements: columns of one array lie between each other, and are disjoint."""
    if not place.may_share(other) and footprints_overlap(footprint(place.data), footprint(other.data)):
        raise ValueError(f"{caller}: {place.name} shares memory with {other.name}; expected separate memory")


def share_memory(x: Any, other: Any) -> bool:
    """Whether two arrays in one place have memory in common; True too where that would take long to find out."""
    return bounds_meet(x, other) and footprints_overlap(footprint(x), footprint(other))


# ---- bounds alone ----


def are_disjoint(x: Any, out: Any) -> bool:
    """True where bounds alone tell that no element of `out` (CuPy arrays both) shares memory with another or with x."""
    return not (shares_within(out.shape, out.strides, out.itemsize) or bounds_meet(x, out))


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


def bounds_meet(x: Any, out: Any) -> bool:
    """Whether the bytes from the first to the last one of two arrays have any in common."""
    if isinstance(x, np.ndarray):
        return np.may_share_memory(x, out)
    (x_begin, x_end), (begin, end) = (bounds(array.shape, array.strides, array.itemsize) for array in (x, out))
    distance = out.data.ptr - x.data.ptr
    return bool(x_begin < distance + end and distance + begin < x_end)


@lru_cache(maxsize=1024)
def bounds(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Bytes from the address of an array to its first byte (0 or less), and to the one behind its last."""
    if 0 in shape:
        return 0, 0
    steps = [stride * (length - 1) for stride, length in zip(strides, shape, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


# ---- element by element ----


def footprint(x: Any) -> np.ndarray[Any, Any]:
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


def footprints_overlap(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> bool:
    """Whether elements of two NumPy arrays share memory; True too where that would take long to find out."""
    try:
        return np.shares_memory(x, out, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
