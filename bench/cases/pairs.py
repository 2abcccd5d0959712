# SPDX-License-Identifier: Apache-2.0
"""Plain casts as cases: the pairs of types, sizes and layouts that are measured, the most valuable first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bench.cases.buffers import CONTIGUOUS, LAYOUTS, MEMORY_SHARE, Layout, Sets, make_sets
from bench.cases.case import Call, Case
from bench.cases.check import Check, check_windows, hard_sets
from bench.cases.contenders import COPY, OURS, SAME_RATIO, Contender, copies, same_ratio
from bench.timing.machine import Copy, Machine
from gpucast.core.dtypes import DType, dtype
from gpucast.parity.cases import NUMERIC

Pair = tuple[DType, DType]
#: Given a number of bytes, the copy kernel that is quickest.
ChooseCopy = Callable[[float], Copy]


def _pairs(text: str) -> tuple[Pair, ...]:
    """Pairs from lines such as "FLOAT to FLOAT16 INT8"."""
    lines = (line.split(" to ") for line in text.strip().splitlines())
    return tuple((dtype(src.strip()), dtype(dst)) for src, names in lines for dst in names.split())


#: Commonly used pairs: storage to arithmetic and back, quantising, images, indices; and a pair of each two widths.
COMMON = _pairs("""
    FLOAT to FLOAT16 BFLOAT16 FLOAT8E4M3FN INT8 DOUBLE INT4
    FLOAT16 to FLOAT BFLOAT16
    BFLOAT16 to FLOAT FLOAT8E5M2 FLOAT4E2M1
    FLOAT8E4M3FN to FLOAT FLOAT16
    FLOAT8E5M2 to FLOAT8E4M3FN
    INT8 to FLOAT UINT8
    UINT8 to FLOAT16 BOOL
    INT64 to INT32
    INT32 to FLOAT
    DOUBLE to FLOAT
    INT4 to FLOAT16
""")
LARGE = 1 << 28
#: Sizes of the common pairs besides LARGE: arrays beyond the cache, around it, in it, and calls.
SIZES = (1 << 24, 1 << 20, 1 << 16, 1 << 13, 1 << 10)
#: The elements of the layouts that are not contiguous.
LAYOUT_SIZE = 1 << 26
#: The contenders measured for all pairs: ours, copies, and the rival of all whole-byte pairs.
FIRST = (OURS, COPY, SAME_RATIO, "CuPy copyto")
#: The contenders that represent their libraries if not all are timed: those that write to a given array.
MAIN = (*FIRST, "torch copy_")


@dataclass(frozen=True)
class PairCase:
    """A cast of one size and layout. `only`: names of contenders; None means all."""

    stage: str
    pair: Pair
    n: int
    layout: Layout = CONTIGUOUS
    only: Sequence[str] | None = None
    samples: int = 40
    limit: float = 0.06

    def fits(self, free_bytes: int) -> bool:
        src, dst = self.pair
        return 2 * (src.nbytes(self.layout.held(self.n)) + dst.nbytes(self.n)) <= MEMORY_SHARE * free_bytes

    def case(self, contenders: Sequence[Contender], choose: ChooseCopy) -> Case:
        (src, dst), layout = self.pair, self.layout.name
        name = f"{self.stage}: {src} to {dst}, {self.n:,}{'' if self.layout is CONTIGUOUS else f', {layout}'}"

        def ways(machine: Machine) -> tuple[float, Mapping[str, Callable[[], Call]]]:
            sets = make_sets(machine, src, dst, self.n, self.layout)
            chosen = [one for one in contenders if self.only is None or one.name in self.only]
            found = {one.name: _prepare(one, sets) for one in chosen if one.supports(src, dst)}
            half, count = sets.moved / 2, len(sets.sources)
            found[COPY] = lambda: Call(copies(machine, count, half, half, choose(sets.moved)), count)
            if src.bits != dst.bits:
                found[SAME_RATIO] = lambda: Call(same_ratio(machine, sets), count)
            return sets.moved, found

        return Case(
            self.stage, name, ways, samples=self.samples, limit=self.limit, src=src.name, dst=dst.name, n=self.n,
            layout=layout,
        )  # fmt: skip


def _prepare(contender: Contender, sets: Sets) -> Callable[[], Call]:
    def prepared() -> Call:
        exact = contender.name.startswith(OURS)
        check = _hard_values(contender, sets.src, sets.dst)
        run = contender.prepare(sets)
        return Call(
            run,
            len(sets.sources),
            None if contender.streamed else contender.wait,
            check=lambda result: check + check_windows(contender, sets, result, exact),
        )

    return prepared


@cache
def _hard_values(contender: Contender, src: DType, dst: DType) -> Check:
    """How a contender casts hard values: once for a pair."""
    sets = hard_sets(contender.machine, src, dst)
    return check_windows(contender, sets, contender.prepare(sets)(0), contender.name.startswith(OURS))


def large() -> Iterator[PairCase]:
    """The common pairs from large arrays to small ones."""
    for n in (LARGE, *SIZES):
        for pair in COMMON:
            yield PairCase("common pairs", pair, n, samples=60, limit=0.1)


def calls() -> Iterator[PairCase]:
    """What a call costs: single elements."""
    for src, dst in (("FLOAT", "FLOAT16"), ("UINT8", "FLOAT"), ("FLOAT", "FLOAT8E4M3FN")):
        yield PairCase("calls", (dtype(src), dtype(dst)), 1, limit=math.inf)


def all_pairs() -> Iterator[PairCase]:
    for src in NUMERIC:
        for dst in NUMERIC:
            if (src, dst) not in COMMON:
                yield PairCase("all pairs", (src, dst), LARGE, only=FIRST)


def layouts() -> Iterator[PairCase]:
    """The common pairs, strided, transposed and misaligned."""
    for pair in COMMON:
        for layout in LAYOUTS.values():
            if layout.applies(pair[0], LAYOUT_SIZE):
                yield PairCase("layouts", pair, LAYOUT_SIZE, layout, MAIN)
