# SPDX-License-Identifier: Apache-2.0
"""The memory of many arrays that are written together: apart from each other, and from all that is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.overlap import bounds, share_memory
from gpucast.arrays.packed import PackedArray, home

_Addresses = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Place:
    """An array by the name that errors call it, and the number of its leaf: that pair alone may share memory."""

    name: str
    leaf: int
    array: Any


def check_apart(written: Sequence[Place], read: Sequence[Place], who: str) -> None:
    """ValueError where an array that is written shares memory with another one, of whichever device they are.

    Source and destination of one leaf are left to `gpucast.arrays.overlap.check_out`, and so are elements within one
    array.
    """
    for device in {home(place.array) for place in written}:
        targets = [place for place in written if home(place.array) == device]
        sources = [place for place in read if home(place.array) == device]
        to, begin, end = _sorted(targets)
        of, first, last = _sorted(sources)
        if to and not (_disjoint(begin, end) and not _meet(begin, end, first, last).any()):
            _compare(to, begin, end, of, first, last, who)


def apart(begin: _Addresses, end: _Addresses, first: _Addresses, last: _Addresses) -> bool:
    """True where bounds alone tell that arrays to be written, from addresses `begin` to `end`, have no byte in common
    with each other, nor with those to be read from `first` to `last`, but for a source that is its own destination.

    Element i of all four belongs to leaf i.
    """
    order = np.argsort(begin)
    if not _disjoint(begin[order], end[order]):
        return False
    own = (begin == first) & (end == last)
    return not (_meet(begin[order], end[order], first, last) & ~own).any()


def is_clear(address: int, nbytes: int, begin: _Addresses, end: _Addresses) -> bool:
    """Whether some bytes are in none of the arrays from addresses `begin` to `end`."""
    return not ((begin < address + nbytes) & (end > address)).any()


def _disjoint(begin: _Addresses, end: _Addresses) -> bool:
    """Whether intervals, sorted by their beginnings, follow each other."""
    return bool((begin[1:] >= end[:-1]).all())


def _meet(begin: _Addresses, end: _Addresses, first: _Addresses, last: _Addresses) -> npt.NDArray[np.bool_]:
    """Which of the intervals from `first` to `last` meet one of those, sorted and apart, from `begin` to `end`."""
    before = np.searchsorted(begin, last)
    reached = np.concatenate([np.zeros(1, np.uint64), end])[before]
    return np.asarray(reached > first)


def _sorted(places: Sequence[Place]) -> tuple[list[Place], _Addresses, _Addresses]:
    """Those that have elements, by their first bytes; their first bytes, and those behind their last ones."""
    found = sorted(
        ((*_reach(place.array), i) for i, place in enumerate(places) if place.array.size), key=lambda item: item[0]
    )
    return (
        [places[i] for _, _, i in found],
        np.array([begin for begin, _, _ in found], np.uint64),
        np.array([end for _, end, _ in found], np.uint64),
    )


def _reach(x: Any) -> tuple[int, int]:
    data = x.data if isinstance(x, PackedArray) else x
    address = data.ctypes.data if isinstance(data, np.ndarray) else data.data.ptr
    begin, end = bounds(data.shape, data.strides, data.itemsize)
    return address + begin, address + end


def _compare(
    to: list[Place],
    begin: _Addresses,
    end: _Addresses,
    of: list[Place],
    first: _Addresses,
    last: _Addresses,
    who: str,
) -> None:
    """Look at elements where bounds do not tell: columns of one array lie between each other, and are apart."""
    for i, place in enumerate(to):
        for other in to[i + 1 : int(np.searchsorted(begin, end[i]))]:
            if share_memory(place.array, other.array):
                raise ValueError(f"{who}: {place.name} and {other.name} share memory; expected separate arrays")
        for j in np.flatnonzero((first < end[i]) & (last > begin[i])):
            if of[j].leaf != place.leaf and share_memory(place.array, of[j].array):
                raise ValueError(f"{who}: {place.name} overlaps {of[j].name}; expected separate memory")
