# SPDX-License-Identifier: Apache-2.0
"""Checked casts of a batch of arrays on one device: contiguous arrays share one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.batch_item import BatchItem, Launch
from gpucast.arrays.operand import Operand
from gpucast.arrays.overlap import Table
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, BatchSource, BatchSpec, sorted_kinds
from gpucast.codegen.cast_kernel import ALIGNED
from gpucast.codegen.fused_kernel import FusedOps
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.fused_ops import FusedInputs
from gpucast.gpu import cast_on_gpu, driver

#: Stands for the first block in unused places of a table; no block has this index.
_NONE = 2**32 - 1


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


def _target(item: BatchItem) -> Operand:
    assert item.target is not None, "memory has been allocated"
    return item.target


def _alone(item: BatchItem) -> Callable[[], None]:
    kernel, arguments = cast_on_gpu.launch_of(item.source, item.rule, _target(item), item.fused)
    return partial(kernel, *arguments)


def is_flat(item: BatchItem) -> bool:
    """Whether both sides are contiguous in the same order."""
    return cast_on_gpu.layout_of(item.source, _target(item), item.fused).shape == "contiguous"


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
    fuses = any(kind.ops is not None for kind in places)
    steps = _steps(items)
    assert steps is not None, "items with scattered scales are cast alone"
    scale_step, amax_step = steps
    prepared = Prepared(
        partial(BatchSpec, places),
        [number[kind] for kind in kinds],
        [item.source.size for item in items],
        device,
        {"first": [item.start for item in items]} if fuses else {},
    )

    def run(src: Table, dst: Table, fused: FusedInputs) -> None:
        if not fuses:
            prepared.run({"src": src, "dst": dst}, lambda begin: {})
            return
        known = cast_on_gpu.fused_kernel(fused, None)[1]

        def given(begin: int) -> dict[str, Any]:
            moved = known._replace(scale_at=known.scale_at + scale_step * begin, amax=known.amax + amax_step * begin)
            return {"given": moved.to_bytes(), "scale_step": scale_step, "amax_step": amax_step}

        prepared.run({"src": src, "dst": dst}, given)

    return run


def _kind(item: BatchItem) -> CastSpec:
    fused, src = item.fused, item.rule.src
    unpacked = src.packed and not item.source.packed
    if fused is None:
        return CastSpec(item.rule, unpacked=unpacked)
    ops = FusedOps(fused.scaling, fused.amax is not None, fused.finite is not None and src.has_nan)
    return CastSpec.of(item.rule, unpacked=unpacked, ops=ops)


class Prepared:
    """The data of a launch for contiguous arrays of some types and sizes on one device, apart from their addresses.

    Columns are those of the kernel's `BatchSource.table`, with one value for every array.
    """

    def __init__(
        self,
        spec_of: Callable[[int], KernelSpec[BatchSource]],
        kind: Sequence[int],
        n: Sequence[int],
        device: int,
        columns: Mapping[str, Sequence[int]],
    ) -> None:
        """Array i has n[i] > 0 elements and is cast by kinds[kind[i]] of ``spec_of(argument_bytes)``; `columns` are
        others that are known."""
        # A short list of arguments is quicker to give.
        spec = spec_of(ARGUMENT_BYTES[0])
        if len(n) > spec.source().capacity:
            spec = spec_of(driver.driver().argument_bytes)
        source = spec.source()
        self._kernel = driver.many_kernel(spec, device)
        places = np.array(kind)
        self._n = np.array(n, np.int64)
        self._elements = source.elements[places]
        # Elements that a tile may begin before its array.
        self._ahead = source.tiles[places] - 1
        #: Of each launch: its arrays, and its argument as far as it is known.
        self._parts: list[tuple[slice, npt.NDArray[Any]]] = []
        for begin in range(0, len(n), source.capacity):
            part = slice(begin, begin + source.capacity)
            count = self._n[part].size
            table = np.zeros((), source.table)
            for name, column in {"n": n, "kind": kind, **columns}.items():
                table[name][:count] = column[part]
            table["first_block"][0], table["first_block"][count:] = 0, _NONE
            self._parts.append((part, table))

    def run(self, addresses: Mapping[str, Table], given: Callable[[int], Mapping[str, Any]]) -> None:
        """Launch for arrays at these addresses, by column, on the current stream of the device, which is the current
        one. `given`: the other fields of the table, for a launch that begins with this array."""
        ahead = np.where(addresses["dst"] % ALIGNED == 0, 0, self._ahead)
        blocks = -(-(self._n + ahead) // self._elements)
        for part, known in self._parts:
            ends = blocks[part].cumsum()
            table = known.copy()
            for name, column in addresses.items():
                table[name][: ends.size] = column[part]
            table["first_block"][1 : ends.size] = ends[:-1]
            for name, value in given(part.start).items():
                table[name] = value
            self._kernel(int(ends[-1]), table)
