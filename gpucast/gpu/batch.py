# SPDX-License-Identifier: Apache-2.0
"""Checked casts of many arrays on one device: one launch for all that are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.item import Leaf
from gpucast.arrays.packed import PackedArray
from gpucast.codegen.batch import ARGUMENT_BYTES, BatchSource, BatchSpec, sorted_kinds
from gpucast.codegen.fused import FusedOps
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.fused_ops import Fusion
from gpucast.core.rule import STOCHASTIC
from gpucast.gpu import cast as device_cast
from gpucast.gpu import driver as launch

#: Bytes of which the address of a destination is a multiple where its first tile begins with its first element.
_ALIGNED = 16
#: The first block of no array.
_NONE = 2**32 - 1
#: Of arrays that are cast together, in their order.
Addresses = npt.NDArray[np.uint64]
#: ``run(src, dst, fusion)`` casts arrays at these addresses.
Launch = Callable[[Addresses, Addresses, Fusion | None], None]


def launches(leaves: Sequence[Leaf], device: int) -> list[Callable[[], None]]:
    """The launches that cast checked leaves with targets on the current device, whose index is `device`, on its current
    stream. All kernels are loaded: what can fail has been done."""
    flat: list[Leaf] = []
    found: list[Callable[[], None]] = []
    for leaf in leaves:
        if leaf.array.size:
            if is_flat(leaf):
                flat.append(leaf)
            else:
                found.append(_alone(leaf, device))
    if len(flat) == 1:
        found.append(_alone(flat[0], device))
    elif flat:
        src, dst = (
            np.array([device_cast.address(x) for x in arrays], np.uint64)
            for arrays in ([leaf.array for leaf in flat], [leaf.target for leaf in flat])
        )
        found.append(partial(prepare(flat, device), src, dst, fusion_of(flat)))
    return found


def _alone(leaf: Leaf, device: int) -> Callable[[], None]:
    kernel, arguments = device_cast.launch_of(leaf.array, leaf.rule, leaf.target, device, leaf.fusion)
    return partial(kernel, *arguments)


def is_flat(leaf: Leaf) -> bool:
    """Whether both sides are contiguous in the same order."""
    return device_cast.dims_of(leaf.array, leaf.target, leaf.rule.rounding == STOCHASTIC) is None


def fusion_of(leaves: Sequence[Leaf]) -> Fusion | None:
    """What is done beside, for all of the leaves: the offset of random words is that of the call."""
    found = None
    for leaf in leaves:
        if leaf.fusion is not None:
            found = leaf.fusion
            if found.random is not None:
                return found._replace(random=found.random._replace(offset=found.random.offset - leaf.start))
    return found


def prepare(leaves: Sequence[Leaf], device: int) -> Launch:
    """The launch of flat leaves, all of which have elements."""
    kinds = [_kind(leaf) for leaf in leaves]
    places = sorted_kinds(kinds)
    number = {kind: i for i, kind in enumerate(places)}
    fused = any(kind.ops is not None for kind in places)
    prepared = Prepared(
        partial(BatchSpec, places),
        [number[kind] for kind in kinds],
        [leaf.array.size for leaf in leaves],
        device,
        {"first": [leaf.start for leaf in leaves]} if fused else {},
    )

    def run(src: Addresses, dst: Addresses, fusion: Fusion | None) -> None:
        given = {}
        if fused and fusion is not None:
            given["given"] = device_cast.fused_kernel(fusion, None)[1].to_bytes()
        prepared.run({"src": src, "dst": dst}, given)

    return run


def _kind(leaf: Leaf) -> CastSpec:
    fusion, src = leaf.fusion, leaf.rule.src
    unpacked = src.packed and not isinstance(leaf.array, PackedArray)
    if fusion is None:
        return CastSpec(leaf.rule, unpacked=unpacked)
    ops = FusedOps(fusion.scaling, False, fusion.finite is not None and src.has_nan)
    return CastSpec.of(leaf.rule, unpacked=unpacked, ops=ops)


class Prepared:
    """Everything about a launch for contiguous arrays of some types and sizes on one device, but for their addresses.

    Columns are those of the kernel's `BatchSource.table`, which has one value of each for every array.
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
            spec = spec_of(launch.driver().argument_bytes)
        source = spec.source()
        self._kernel = launch.many_kernel(spec, device)
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

    def run(self, addresses: Mapping[str, Addresses], given: Mapping[str, Any]) -> None:
        """Launch for arrays at these addresses, by column, on the current stream of the device, which is the current
        one. `given`: the fields of the table that are no columns."""
        ahead = np.where(addresses["dst"] % _ALIGNED == 0, 0, self._ahead)
        blocks = -(-(self._n + ahead) // self._elements)
        for part, known in self._parts:
            ends = blocks[part].cumsum()
            table = known.copy()
            for name, column in addresses.items():
                table[name][: ends.size] = column[part]
            table["first_block"][1 : ends.size] = ends[:-1]
            for name, value in given.items():
                table[name] = value
            self._kernel(int(ends[-1]), table)
