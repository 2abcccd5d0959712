# SPDX-License-Identifier: Apache-2.0
"""Checked casts of many arrays on one device: one launch for all that are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import device_cast, launch
from gpucast.fused_source import Options
from gpucast.fusion import Fusion
from gpucast.many_leaves import Leaf
from gpucast.many_source import ARGUMENT_BYTES, Kind, many_source, sorted_kinds
from gpucast.packed import PackedArray
from gpucast.rule import STOCHASTIC

#: Bytes of which the address of a destination is a multiple where its first tile begins with its first element.
_ALIGNED = 16
#: The first block of no array.
_NONE = 2**32 - 1


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
        found.append(partial(prepare(flat, device).run, src, dst, fusion_of(flat)))
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


def prepare(leaves: Sequence[Leaf], device: int) -> Prepared:
    """The launch of flat leaves, all of which have elements."""
    kinds = [_kind(leaf) for leaf in leaves]
    places = sorted_kinds(kinds)
    number = {kind: i for i, kind in enumerate(places)}
    return Prepared(
        places,
        [number[kind] for kind in kinds],
        [leaf.array.size for leaf in leaves],
        [leaf.start for leaf in leaves],
        device,
    )


def _kind(leaf: Leaf) -> Kind:
    fusion, src = leaf.fusion, leaf.rule.src
    unpacked = src.packed and not isinstance(leaf.array, PackedArray)
    if fusion is None:
        return Kind(leaf.rule, unpacked)
    return Kind(leaf.rule, unpacked, Options(fusion.scaling, False, fusion.finite is not None and src.has_nan))


class Prepared:
    """Everything about casts of contiguous arrays of some types and sizes on one device, but for their addresses."""

    def __init__(
        self, kinds: tuple[Kind, ...], kind: Sequence[int], n: Sequence[int], first: Sequence[int], device: int
    ) -> None:
        """Array i has n[i] > 0 elements and is cast by kinds[kind[i]]. `kinds` are in the order of `sorted_kinds`.

        first[i]: the elements of the call before it.
        """
        # A short list of arguments is quicker to give.
        source = many_source(kinds, ARGUMENT_BYTES[0])
        if len(n) > source.capacity:
            source = many_source(kinds, launch.driver().argument_bytes)
        self._kernel = launch.many_kernel(source, device)
        places = np.array(kind)
        self._n = np.array(n, np.int64)
        self._elements = source.elements[places]
        # Elements that a tile may begin before its array.
        self._ahead = source.tiles[places] - 1
        self._fused = "given" in (source.table.names or ())
        #: Of each launch: its arrays, and its argument as far as it is known.
        self._parts: list[tuple[slice, npt.NDArray[Any]]] = []
        for begin in range(0, len(n), source.capacity):
            part = slice(begin, begin + source.capacity)
            count = self._n[part].size
            table = np.zeros((), source.table)
            table["n"][:count], table["kind"][:count] = self._n[part], places[part]
            table["first_block"][0], table["first_block"][count:] = 0, _NONE
            if self._fused:
                table["first"][:count] = first[part]
            self._parts.append((part, table))

    def run(self, src: npt.NDArray[np.uint64], dst: npt.NDArray[np.uint64], fusion: Fusion | None) -> None:
        """Launch for arrays at these addresses, on the current stream of the device, which is the current one."""
        ahead = np.where(dst % _ALIGNED == 0, 0, self._ahead)
        blocks = -(-(self._n + ahead) // self._elements)
        for part, known in self._parts:
            ends = blocks[part].cumsum()
            table = known.copy()
            table["src"][: ends.size] = src[part]
            table["dst"][: ends.size] = dst[part]
            table["first_block"][1 : ends.size] = ends[:-1]
            if self._fused and fusion is not None:
                table["given"] = device_cast.fused_kernel(fusion, None)[1].to_bytes()
            self._kernel(int(ends[-1]), table)
