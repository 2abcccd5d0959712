# SPDX-License-Identifier: Apache-2.0
"""Memory that arrays share: the one check that written arrays are disjoint, and the bounds that fast paths ask for.

Arrays here are those of NumPy or CuPy that hold the bytes (`gpucast.arrays.array.Array.data`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import address_of
from gpucast.arrays.packed import PackedArray, device_index

#: A number of each array, such as its address, in their order.
Table = npt.NDArray[np.uint64]
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
                _check_pair(place, other, caller)
        return
    for device in {device_index(place.array) for place in written}:
        targets = _sorted(place for place in written if device_index(place.array) == device)
        sources = _sorted(place for place in read if device_index(place.array) == device)
        clear = _follow(targets.begin, targets.end)
        if not (clear and not _meet(targets.begin, targets.end, sources.begin, sources.end).any()):
            _compare(targets, sources, caller)


def _check_pair(place: Place, other: Place, caller: str) -> None:
    if place.may_share(other) or device_index(place.array) != device_index(other.array):
        return
    if share_memory(place.data, other.data):
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


# ---- many arrays ----


class _Sorted(NamedTuple):
    """Arrays that have elements, by their first bytes."""

    places: list[Place]
    #: Their first bytes, and those behind their last ones.
    begin: Table
    end: Table


def _sorted(places: Iterable[Place]) -> _Sorted:
    reached = [(*_reach(place.data), i, place) for i, place in enumerate(places) if place.data.size]
    reached.sort(key=lambda item: (item[0], item[2]))
    return _Sorted(
        [place for _, _, _, place in reached],
        np.array([begin for begin, _, _, _ in reached], np.uint64),
        np.array([end for _, end, _, _ in reached], np.uint64),
    )


def _reach(x: Any) -> tuple[int, int]:
    begin, end = bounds(x.shape, x.strides, x.itemsize)
    address = address_of(x)
    return address + begin, address + end


def _follow(begin: Table, end: Table) -> bool:
    """Whether intervals, sorted by their beginnings, follow each other."""
    return bool((begin[1:] >= end[:-1]).all())


def _meet(begin: Table, end: Table, first: Table, last: Table) -> npt.NDArray[np.bool_]:
    """Which of the intervals from `first` to `last` meet one of those, sorted and disjoint, from `begin` to `end`."""
    before = np.searchsorted(begin, last)
    reached = np.concatenate([np.zeros(1, np.uint64), end])[before]
    return np.asarray(reached > first)


def _compare(to: _Sorted, of: _Sorted, caller: str) -> None:
    """Look at elements where bounds do not tell: columns of one array lie between each other, and are disjoint."""
    for i, place in enumerate(to.places):
        begin, end = to.begin[i], to.end[i]
        for other in to.places[i + 1 : int(np.searchsorted(to.begin, end))]:
            _check_pair(place, other, caller)
        for j in np.flatnonzero((of.begin < end) & (of.end > begin)):
            _check_pair(place, of.places[j], caller)
