# SPDX-License-Identifier: Apache-2.0
"""Checked casts of a batch of arrays on one device: contiguous arrays share one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.array import Array
from gpucast.arrays.batch_item import BatchItem, Launch
from gpucast.arrays.overlap import Table
from gpucast.casting import cuda
from gpucast.core.fused_ops import FusedInputs
from gpucast.kernel import driver
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, ARRAYS, Batch, Kind, batch_kernel, sorted_kinds
from gpucast.kernel.fields import Fields
from gpucast.kernel.fused_kernel import FUSED, FusedOps
from gpucast.kernel.kernel import ALIGNED

#: Stands for the first block in unused places of a table; no block has this index.
_NONE = 2**32 - 1
#: The fields of `ARRAYS`.
_COLUMNS = frozenset(row[0] for row in ARRAYS.rows)


def launches(items: Sequence[BatchItem], device: int) -> list[Callable[[], None]]:
    """The launches that cast checked items with targets, on the current stream of the current device `device`. All
    kernels are loaded by now, so nothing can fail later.
    """
    flat: list[BatchItem] = []
    found: list[Callable[[], None]] = []
    for item in items:
        if item.source.size:
            if is_flat(item):
                flat.append(item)
            else:
                found.append(_alone(item))
    if len(flat) == 1 or _steps(flat) is None:
        found += map(_alone, flat)
    elif flat:
        src = np.array([item.source.address for item in flat], np.uint64)
        dst = np.array([_target(item).address for item in flat], np.uint64)
        found.append(partial(prepare(flat, device), src, dst, fused_of(flat)))
    return found


def _target(item: BatchItem) -> Array:
    assert item.target is not None, "memory has been allocated"
    return item.target


def _alone(item: BatchItem) -> Callable[[], None]:
    return cuda.launch_of(item.source, item.rule, _target(item), item.fused)


def is_flat(item: BatchItem) -> bool:
    """Whether both sides are contiguous in the same order."""
    return cuda.layout_of(item.source, _target(item), item.fused).shape == "contiguous"


def fused_of(items: Sequence[BatchItem]) -> FusedInputs:
    """The operations that are fused with the casts of all items. The offset of random words is the call's; `scale` and
    `amax` are those of the first item.
    """
    found = next((item.fused for item in items if item.fused is not None), FusedInputs())
    for item in items:
        if item.fused is not None and item.fused.random is not None:
            random = item.fused.random
            return found._replace(random=random._replace(offset=random.offset - item.start))
    return found


def _steps(items: Sequence[BatchItem]) -> tuple[int, int] | None:
    """How many bytes lie between the scales, and between the `amax`, of an item and of the next: 0 where all have the
    same. None where the distances differ."""
    fused = [item.fused for item in items if item.fused is not None]
    scales = [each.scale for each in fused if each.scale is not None and not isinstance(each.scale, float)]
    found = []
    for arrays in (scales, [each.amax for each in fused if each.amax is not None]):
        steps = np.diff([array.data.ptr for array in arrays])
        if steps.any() and not (steps == arrays[0].itemsize).all():
            return None
        found.append(int(steps[0]) if steps.size else 0)
    return found[0], found[1]


def prepare(items: Sequence[BatchItem], device: int) -> Launch:
    """The launch of flat items that have elements."""
    kinds = [_kind(item) for item in items]
    places = sorted_kinds(kinds)
    number = {kind: i for i, kind in enumerate(places)}
    fuses = any(kind.ops.fuses(kind.rule) for kind in places)
    steps = _steps(items)
    assert steps is not None, "items with scattered scales are cast alone"
    scale_step, amax_step = steps
    prepared = Prepared(
        partial(batch_kernel, places),
        [number[kind] for kind in kinds],
        [item.source.size for item in items],
        device,
        {"first": [item.start for item in items]} if fuses else {},
        {"scale_step": scale_step, "amax_step": amax_step} if fuses else {},
    )

    def run(src: Table, dst: Table, fused: FusedInputs) -> None:
        if not fuses:
            prepared.run({"src": src, "dst": dst})
            return
        number, scale_at, amax, *others = cuda.fused_values(fused)

        def write(table: npt.NDArray[Any], begin: int) -> None:
            moved = scale_at + scale_step * begin, amax + amax_step * begin
            FUSED.layout.pack_into(table.data, prepared.offsets["given"], number, *moved, *others)

        prepared.run({"src": src, "dst": dst}, write)

    return run


def _kind(item: BatchItem) -> Kind:
    fused, src = item.fused, item.rule.src
    unpacked = src.packed and not item.source.packed
    if fused is None:
        return Kind(item.rule, unpacked)
    ops = FusedOps(fused.scaling, fused.amax is not None, fused.finite is not None and src.has_nan)
    return Kind(item.rule, unpacked, ops)


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
        # A short list of arguments is quicker to give.
        batch = batch_of(ARGUMENT_BYTES[0])
        if len(n) > batch.capacity:
            batch = batch_of(driver.driver().argument_bytes)
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
