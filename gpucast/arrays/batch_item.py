# SPDX-License-Identifier: Apache-2.0
"""One array of a call of `gpucast.cast_many`, and the check that written arrays share no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.arrays.adapters import ArrayAdapter, BatchAdapter
from gpucast.arrays.operand import Operand, bounds, share_memory
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule

#: A number of each array, such as its address, in their order.
Table = npt.NDArray[np.uint64]
#: ``launch(src, dst, fused)`` casts arrays at these addresses.
Launch = Callable[[Table, Table, FusedInputs], None]


class Names(NamedTuple):
    """The names of a call's arrays in error messages."""

    #: The caller's parameter: "arrays".
    parameter: str
    #: Where in it the arrays are, such as "['encoder'][3]".
    paths: Callable[[], Sequence[str]]


@dataclass(slots=True)
class BatchItem:
    """One array of a call of `gpucast.cast_many`."""

    #: What errors call it: "cast_many: arrays['encoder'][3]".
    caller: str
    #: The array as given, its adapter (None: it is native), and the native array over its memory.
    given: Any
    adapter: ArrayAdapter | None
    source: Operand
    #: The result for the caller, and the native array over its memory; None until there is one.
    result: Any
    target: Operand | None = None
    rule: CastRule = field(init=False)
    #: The fused operations; None for a plain cast.
    fused: FusedInputs | None = None
    #: Elements of the items before it.
    start: int = 0

    @property
    def is_alone(self) -> bool:
        """Whether it is of a library whose arrays share no launches with ours."""
        return self.adapter is not None and not isinstance(self.adapter, BatchAdapter)


@dataclass(frozen=True, slots=True)
class Place:
    """An array under its name in error messages. Source and destination of one item may share memory."""

    name: str
    #: The number of the item in its batch; a negative one for an array that belongs to none.
    item: int
    operand: Operand


def check_disjoint(written: Sequence[Place], read: Sequence[Place], caller: str) -> None:
    """Raise a ValueError where an array that is written shares memory with another one, on any device.

    `gpucast.arrays.operand.check_out` looks at source and destination of one item, and at elements within one array.
    """
    for device in {place.operand.device for place in written}:
        targets = _sorted(place for place in written if place.operand.device == device)
        sources = _sorted(place for place in read if place.operand.device == device)
        clear = _follow(targets.begin, targets.end)
        if not (clear and not _meet(targets.begin, targets.end, sources.begin, sources.end).any()):
            _compare(targets, sources, caller)


def disjoint(begin: Table, end: Table, first: Table, last: Table) -> bool:
    """True where bounds alone tell that arrays to be written, from addresses `begin` to `end`, have no byte in common
    with each other, nor with those to be read from `first` to `last`, but for a source that is its own destination.

    Element i of all four belongs to item i.
    """
    order = np.argsort(begin)
    if not _follow(begin[order], end[order]):
        return False
    own = (begin == first) & (end == last)
    return not (_meet(begin[order], end[order], first, last) & ~own).any()


def is_clear(address: int, nbytes: int, begin: Table, end: Table) -> bool:
    """Whether some bytes are in none of the arrays from addresses `begin` to `end`."""
    return not ((begin < address + nbytes) & (end > address)).any()


def _follow(begin: Table, end: Table) -> bool:
    """Whether intervals, sorted by their beginnings, follow each other."""
    return bool((begin[1:] >= end[:-1]).all())


def _meet(begin: Table, end: Table, first: Table, last: Table) -> npt.NDArray[np.bool_]:
    """Which of the intervals from `first` to `last` meet one of those, sorted and disjoint, from `begin` to `end`."""
    before = np.searchsorted(begin, last)
    reached = np.concatenate([np.zeros(1, np.uint64), end])[before]
    return np.asarray(reached > first)


class _Sorted(NamedTuple):
    """Arrays that have elements, by their first bytes."""

    places: list[Place]
    #: Their first bytes, and those behind their last ones.
    begin: Table
    end: Table


def _sorted(places: Iterable[Place]) -> _Sorted:
    reached = [(*_reach(place.operand), i, place) for i, place in enumerate(places) if place.operand.size]
    reached.sort(key=lambda item: (item[0], item[2]))
    return _Sorted(
        [place for _, _, _, place in reached],
        np.array([begin for begin, _, _, _ in reached], np.uint64),
        np.array([end for _, end, _, _ in reached], np.uint64),
    )


def _reach(x: Operand) -> tuple[int, int]:
    begin, end = bounds(x.data.shape, x.data.strides, x.data.itemsize)
    return x.address + begin, x.address + end


def _compare(to: _Sorted, of: _Sorted, caller: str) -> None:
    """Look at elements where bounds do not tell: columns of one array lie between each other, and are disjoint."""
    for i, place in enumerate(to.places):
        begin, end, data = to.begin[i], to.end[i], place.operand.data
        for other in to.places[i + 1 : int(np.searchsorted(to.begin, end))]:
            if share_memory(data, other.operand.data):
                raise ValueError(f"{caller}: {place.name} and {other.name} share memory; expected separate arrays")
        for j in np.flatnonzero((of.begin < end) & (of.end > begin)):
            source = of.places[j]
            if source.item != place.item and share_memory(data, source.operand.data):
                raise ValueError(f"{caller}: {place.name} overlaps {source.name}; expected separate memory")
