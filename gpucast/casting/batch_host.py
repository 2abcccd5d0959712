# SPDX-License-Identifier: Apache-2.0
"""Plans of `gpucast.cast_many` for the host: the compiled library casts all arrays of a rule in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast import native
from gpucast.arrays.batch_item import BatchItem, Launch, Table
from gpucast.arrays.operand import Operand
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule


class _Group(NamedTuple):
    """Arrays that are cast by one rule."""

    rule: CastRule
    #: Their places among all; None for all.
    places: npt.NDArray[np.intp] | None
    sizes: Table
    #: Bytes of sources, and of sources and results.
    src_bytes: int
    nbytes: Table

    def of(self, table: Table) -> Table:
        return table if self.places is None else table[self.places]


class Casts:
    """The casts of arrays of some types and sizes."""

    def __init__(self, live: Sequence[tuple[BatchItem, Operand]]) -> None:
        fused = live[0][0].fused
        self._is_scaled = fused is not None and fused.scale is not None
        by_rule: dict[CastRule, list[int]] = {}
        for i, (item, _) in enumerate(live):
            by_rule.setdefault(item.rule, []).append(i)
        self._groups = [self._group(rule, live, places) for rule, places in by_rule.items()]
        #: Of the groups, once all have been found.
        self._casts: list[native.batch.Each] = []
        #: The bits of an address that are clear where elements are aligned: of sources, and of results.
        self._unaligned = (
            np.array([item.source.itemsize - 1 for item, _ in live], np.uint64),
            np.array([to.itemsize - 1 for _, to in live], np.uint64),
        )

    @staticmethod
    def _group(rule: CastRule, live: Sequence[tuple[BatchItem, Operand]], places: list[int]) -> _Group:
        own = [live[i] for i in places]
        return _Group(
            rule,
            None if len(own) == len(live) else np.array(places),
            np.array([item.source.size for item, _ in own], np.uint64),
            sum(item.source.data.nbytes for item, _ in own),
            np.array([item.source.data.nbytes + to.data.nbytes for item, to in own], np.uint64),
        )

    @staticmethod
    def take(live: Sequence[tuple[BatchItem, Operand]]) -> bool:
        """Whether the library casts such arrays, which are contiguous, no later than one by one."""
        nbytes = np.array([item.source.data.nbytes + to.data.nbytes for item, to in live], np.uint64)
        return native.threads.are_small(nbytes) and all(
            not (item.source.packed or to.packed)
            and item.source.data.dtype.isnative
            and to.data.dtype.isnative
            and (item.fused is None or (item.fused.scale is not None and item.fused.random is None))
            and native.batch.is_known(item.rule, item.fused is not None)
            for item, to in live
        )

    def launch(self, src: Table, to: Table | None) -> Launch | None:
        """What casts arrays at these addresses, `to` being None for memory to be made; None where the library cannot,
        or is not compiled. Says how much there is to cast."""
        if (src & self._unaligned[0]).any():
            return None
        if to is not None and ((to & self._unaligned[1]).any() or (src == to).any()):
            return None
        casts = self._casts
        if not casts:
            found = [native.batch.find(group.rule, self._is_scaled, group.src_bytes) for group in self._groups]
            casts = [cast for cast in found if cast is not None]
            if len(casts) < len(found):
                return None
            self._casts = casts
        return partial(self._cast, casts)

    def _cast(self, casts: Sequence[native.batch.Each], src: Table, to: Table, fused: FusedInputs) -> None:
        for group, cast in zip(self._groups, casts, strict=True):
            cast(group.of(src), group.of(to), group.sizes, group.nbytes, fused)
