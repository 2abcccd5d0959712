# SPDX-License-Identifier: Apache-2.0
"""The measurements of casts on a GPU, the most valuable first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from bench.cases.buffers import CONTIGUOUS, LAYOUTS, MEMORY_SHARE, Layout
from bench.cases.contenders import COPY, OURS
from bench.cases.pairs import COMMON, Via
from bench.timing.times import LEAST
from gpucast.core.dtypes import DType
from gpucast.parity.cases import NUMERIC

LARGE, HUGE = 1 << 28, 1 << 30
#: Sizes of the common pairs besides LARGE: calls, arrays in the cache, around it, and beyond.
SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 24)
GRAPH_SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 20)
#: Lengths that are no multiple of a tile.
ODD = (LARGE - 1, LARGE + 13)
#: Sizes at which every pair that a rival has is compared with it.
SHARED = (1 << 17, 1 << 20, 1 << 24)
#: Sizes besides LARGE at which rivals that compile are measured: a call, and arrays beyond the cache.
COMPILED = (1 << 10, 1 << 24)
#: The elements of the layouts that are not contiguous.
LAYOUT_SIZE = 1 << 26

#: The contenders measured for all pairs: ours, a copy of as many bytes, and the rival of all whole-byte pairs.
FIRST = (OURS, COPY, "CuPy copyto")
#: The rivals that represent their libraries if not all are timed: those that write to a given array.
MAIN = (*FIRST, "torch copy_")
#: Stages in their order; those of others than this module stand between them.
STAGES = (
    "users", "ceilings", "common pairs", "calls", "graphs", "quantize", "many", "all pairs", "layouts", "first call",
    "odd lengths", "huge", "shared pairs", "rivals that compile",
)  # fmt: skip


@dataclass(frozen=True)
class CastTask:
    """One measurement. `only`: names of contenders; None means all, `compiled` ones only where that is said."""

    stage: str
    src: DType
    dst: DType
    n: int
    layout: Layout = CONTIGUOUS
    via: Via = "calls"
    only: tuple[str, ...] | None = None
    compiled: bool = False
    #: Batches of each contender, and the seconds that they may take.
    samples: int = 40
    limit: float = 0.06

    def names(self, has: Collection[str], heavy: Collection[str]) -> list[str]:
        """Those contenders of `has` that are measured; `heavy` are the contenders that compile."""
        if self.only is not None:
            return [name for name in has if name in self.only]
        return [name for name in has if self.compiled or name not in heavy]

    def __str__(self) -> str:
        more = "".join(f", {part}" for part in (self.layout.name, self.via) if part not in (CONTIGUOUS.name, "calls"))
        return f"{self.stage}: {self.src} to {self.dst}, {self.n:,}{more}"


def plan(has: Callable[[DType, DType], Collection[str]], free_bytes: int) -> list[CastTask]:
    """Every task whose arrays fit. `has` returns the names of the contenders that support a pair.

    A case may be measured twice, the second time with more contenders, so that all their figures come from the same
    measurement.
    """
    return [
        task
        for task in sorted(_all(has), key=lambda task: STAGES.index(task.stage))
        if 2 * task.layout.held(task.n) * (task.src.bits + task.dst.bits) / 8 <= free_bytes * MEMORY_SHARE
    ]


def _all(has: Callable[[DType, DType], Collection[str]]) -> Iterator[CastTask]:
    pairs = [(src, dst) for src in NUMERIC for dst in NUMERIC]
    for n in (LARGE, *reversed(SIZES)):
        for pair in COMMON:
            yield CastTask("common pairs", *pair, n, samples=60, limit=0.1)
    for n in GRAPH_SIZES:
        for pair in COMMON:
            yield CastTask("graphs", *pair, n, via="graph", only=MAIN)
    common = set(COMMON)
    for pair in pairs:
        if pair not in common:
            yield CastTask("all pairs", *pair, LARGE, only=FIRST)
    for pair in COMMON:
        for layout in LAYOUTS.values():
            if layout.applies(pair[0], LAYOUT_SIZE):
                yield CastTask("layouts", *pair, LAYOUT_SIZE, layout, only=MAIN)
        for n in ODD:
            yield CastTask("odd lengths", *pair, n, only=MAIN)
        yield CastTask("huge", *pair, HUGE, only=MAIN, limit=0.2)
    for n in SHARED:
        for pair in pairs:
            # Common pairs have more rivals at these sizes already.
            if len(set(MAIN) & set(has(*pair)) - {COPY}) > 1 and not (pair in common and n in SIZES):
                yield CastTask("shared pairs", *pair, n, only=MAIN, samples=LEAST, limit=0.03)
    for n in (LARGE, *COMPILED):
        for pair in COMMON:
            yield CastTask("rivals that compile", *pair, n, compiled=True, samples=60, limit=0.1)
