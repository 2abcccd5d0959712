# SPDX-License-Identifier: Apache-2.0
"""Checked casts of a batch of arrays on one device: contiguous arrays share one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.overlap import Table
from gpucast.casting import cuda
from gpucast.casting.engine import Call, Launch
from gpucast.core.fuse import EMPTY, Fuse
from gpucast.kernel import driver
from gpucast.kernel.batch_kernel import ARRAYS, Batch, Kind, batch_kernel, sorted_kinds
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, FusedOps
from gpucast.kernel.kernel import ALIGNED

#: Stands for the first block in unused places of a table; no block has this index.
_NONE = 2**32 - 1
#: The fields of `ARRAYS`.
_COLUMNS = frozenset(row[0] for row in ARRAYS.rows)


def launches(calls: Sequence[Call], device: int) -> list[Callable[[], None]]:
    """The launches of calls with targets, on the current stream of the current device `device`. All kernels are loaded
    by now, so nothing can fail later.
    """
    live = [call for call in calls if call.source.size]
    flat: list[Call] = []
    others: list[Call] = []
    if len(live) > 1:
        for call in live:
            (flat if is_flat(call) else others).append(call)
    if len(flat) < 2 or _steps(flat) is None:
        return list(map(cuda.launch_of, live))
    src = np.array([call.source.address for call in flat], np.uint64)
    dst = np.array([call.written.address for call in flat], np.uint64)
    return [*map(cuda.launch_of, others), partial(prepare(flat, device), src, dst, fuse_of(flat))]


def is_flat(call: Call) -> bool:
    """Whether both sides are contiguous in the same order."""
    return cuda.layout_of(call.source, call.written, call.fuse).shape == "contiguous"


def fuse_of(calls: Sequence[Call]) -> Fuse:
    """That of a batch. The offset of random words is the batch's; `scale` and `amax` are those of the first call."""
    found = next((call.fuse for call in calls if call.fuse is not EMPTY), EMPTY)
    for call in calls:
        if call.fuse.random is not None:
            random = call.fuse.random
            return found._replace(random=random._replace(offset=random.offset - call.start))
    return found


def _steps(calls: Sequence[Call]) -> tuple[int, int] | None:
    """How many bytes lie between the scales, and between the `amax`, of a call and of the next: 0 where all have the
    same. None where the distances differ."""
    found = []
    fuses = [call.fuse for call in calls if call.fuse is not EMPTY]
    for name in ("scale", "amax"):
        arrays = [x for fuse in fuses if not ((x := getattr(fuse, name)) is None or isinstance(x, float))]
        steps = np.diff([array.data.ptr for array in arrays])
        if steps.any() and not (steps == arrays[0].itemsize).all():
            return None
        found.append(int(steps[0]) if steps.size else 0)
    return found[0], found[1]


def prepare(calls: Sequence[Call], device: int) -> Launch:
    """The launch of flat calls that have elements."""
    kinds = [_kind(call) for call in calls]
    places = sorted_kinds(kinds)
    number = {kind: i for i, kind in enumerate(places)}
    fuses = any(kind.ops.fuses(kind.rule) for kind in places)
    steps = _steps(calls)
    assert steps is not None, "calls with scattered scales are cast alone"
    scale_step, amax_step = steps
    prepared = Prepared(
        partial(batch_kernel, places),
        [number[kind] for kind in kinds],
        [call.source.size for call in calls],
        device,
        {"first": [call.start for call in calls]} if fuses else {},
        {"scale_step": scale_step, "amax_step": amax_step} if fuses else {},
    )

    def run(src: Table, dst: Table, fuse: Fuse) -> None:
        if not fuses:
            prepared.run({"src": src, "dst": dst})
            return
        number, scale_at, amax, *others = cuda.fused_values(fuse)

        def write(table: npt.NDArray[Any], begin: int) -> None:
            moved = scale_at + scale_step * begin, amax + amax_step * begin
            FUSED.layout.pack_into(table.data, prepared.offsets["given"], number, *moved, *others)

        prepared.run({"src": src, "dst": dst}, write)

    return run


def _kind(call: Call) -> Kind:
    fuse, src = call.fuse, call.rule.src
    if fuse.finite is not None and not src.has_nan:
        fuse = fuse._replace(finite=None)
    return Kind(call.rule, src.packed and not call.source.packed, FusedOps.of(fuse))


class Prepared:
    """The data of a launch for contiguous arrays of some types and sizes on one device, apart from their addresses.

    Columns are the fields of the kernel's table that have one value for every array.
    """

    def __init__(
        self,
        batch_of: Callable[[int], Batch],
        kind: Sequence[int],
        n: Sequence[int],
        device: int,
        columns: Mapping[str, Sequence[int]],
        others: Mapping[str, int],
    ) -> None:
        """Array i has n[i] > 0 elements and is cast by kind kind[i] of ``batch_of(argument_bytes)``; `columns` and
        `others` are further fields that are known."""
        short, most = driver.driver().argument_bytes
        batch = batch_of(short)
        if len(n) > batch.capacity:
            batch = batch_of(most)
        self._launch = driver.ready(batch.kernel, device)
        places = np.array(kind)
        self._n = np.array(n, np.int64)
        self._elements = batch.elements[places]
        # Elements that a tile may begin before its array.
        self._ahead = batch.tiles[places] - 1
        table = batch.kernel.arguments.places[0].type
        assert isinstance(table, Fields)
        #: Where the fields of a table lie.
        self.offsets = table.offsets
        #: Whether a table begins with an `ARRAYS`, or is one.
        self._begins = "arrays" in self.offsets
        #: Of each launch: its arrays, and its argument as far as it is known.
        self._parts: list[tuple[slice, npt.NDArray[Any]]] = []
        for begin in range(0, len(n), batch.capacity):
            part = slice(begin, begin + batch.capacity)
            count = self._n[part].size
            known = np.zeros((), table.dtype)
            for name, column in {"n": n, "kind": kind, **columns}.items():
                self._holder(known, name)[name][:count] = column[part]
            for name, value in others.items():
                known[name] = value
            first_block = self._holder(known, "first_block")["first_block"]
            first_block[0], first_block[count:] = 0, _NONE
            self._parts.append((part, known))

    def run(self, addresses: Mapping[str, Table], write: Callable[[npt.NDArray[Any], int], None] | None = None) -> None:
        """Launch for arrays at these addresses, by column, on the current stream of the device, which is the current
        one. ``write(table, begin)`` adds what else depends on the call to a table whose first array is number `begin`.
        """
        ahead = np.where(addresses["dst"] % ALIGNED == 0, 0, self._ahead)
        blocks = -(-(self._n + ahead) // self._elements)
        for part, known in self._parts:
            ends = blocks[part].cumsum()
            table = known.copy()
            arrays = table["arrays"] if self._begins else table
            for name, column in addresses.items():
                (arrays if name in _COLUMNS else table)[name][: ends.size] = column[part]
            arrays["first_block"][1 : ends.size] = ends[:-1]
            if write is not None:
                write(table, part.start)
            self._launch(int(ends[-1]), table)

    def _holder(self, table: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """The table, or the `ARRAYS` that it begins with: whichever has the field."""
        return table["arrays"] if self._begins and name in _COLUMNS else table
