# SPDX-License-Identifier: Apache-2.0
"""Every kernel at many sizes and misalignments, in few launches: run as it is, and under compute-sanitizer.

    compute-sanitizer --tool memcheck --kernel-name kns=gpucast_ python -m bench.gpu.sweep

Each side is an allocation of its own that ends with the array, so that memcheck detects every access beyond its end.
The memory before the array is never written, so that initcheck detects if it is read. Results are compared with the
reference too.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpucast
from bench.cases.buffers import LAYOUTS, as_array, raw, source_codes
from bench.cases.check import Check, compare
from bench.cases.contenders import Contender
from bench.timing.machine import Machine
from gpucast.core.dtypes import DType
from gpucast.core.rule import resolve
from gpucast.parity.cases import NUMERIC
from gpucast.parity.compare import wanted_codes

#: All sizes up to a few blocks of the smallest tiles, one more than a multiple included.
SIZES = 4100
#: The number of first cases after which each kernel had a launch: contiguous for all pairs, strided for whole bytes.
KERNELS = len(NUMERIC) ** 2 + len(NUMERIC) * sum(not dtype.packed for dtype in NUMERIC)
#: The number of offsets of an array, in elements (of packed types in bytes).
SHIFTS = 17


@dataclass(frozen=True)
class SweepCase:
    """One launch. `strided`: every other element of the source."""

    src: DType
    dst: DType
    n: int
    src_shift: int
    dst_shift: int
    strided: bool = False

    def __str__(self) -> str:
        way = ", strided" if self.strided else ""
        return f"{self.src} to {self.dst}, {self.n} elements behind {self.src_shift} and {self.dst_shift}{way}"


def cases(pairs: Sequence[tuple[DType, DType]]) -> Iterator[SweepCase]:
    """Cases that cover each size once over all pairs together, with the pairs in turn in a seeded order.

    First each contiguous kernel has a launch, then each strided one, so that a short run misses sizes and not kernels.
    """
    order = random.Random(0)
    sizes, pairs = list(range(SIZES)), list(pairs)
    order.shuffle(pairs)
    order.shuffle(sizes)
    shifts = itertools.cycle(itertools.product(range(SHIFTS), range(SHIFTS)))
    flat = []
    for (src, dst), n, (src_shift, dst_shift) in zip(itertools.cycle(pairs), sizes, shifts, strict=False):
        flat.append(SweepCase(src, dst, n, src_shift, dst_shift))
    yield from flat[: len(pairs)]
    for number, (src, dst) in enumerate(pairs):
        if not src.packed:
            yield SweepCase(src, dst, order.randrange(SIZES), number % SHIFTS, 2 * number % SHIFTS, True)
    yield from flat[len(pairs) :]


def sweep(machine: Machine, chosen: Iterable[SweepCase]) -> list[str]:
    """Runs them; returns which differ, in words. Each is named on stderr first, in case it ends the process."""
    wrong = list[str]()
    with machine.current():
        for case in chosen:
            print(f"\r{case}\x1b[K", end="", file=sys.stderr, flush=True)
            found = _run(machine, case)
            if found.wrong:
                wrong.append(f"{case}: {found.wrong} differ: {found.first}")
    return wrong


def _run(machine: Machine, case: SweepCase) -> Check:
    src, dst, n = case.src, case.dst, case.n
    held = 2 * n - 1 if case.strided and n else n
    codes = source_codes(src)[:held]
    source, out = _side(machine, src, held, case.src_shift), _side(machine, dst, n, case.dst_shift)
    if n:
        machine.upload(source, raw(codes, src))
    x, y = as_array(source, src, held), as_array(out, dst, n)
    if case.strided:
        x, codes = LAYOUTS["strided"].view(x), LAYOUTS["strided"].view(codes)
    gpucast.cast(x, dst, out=y)
    machine.synchronize()
    codes = np.ascontiguousarray(codes)
    got = Contender(machine).codes(y, dst, 0, n) if n else codes[:0].astype(dst.code_numpy)
    return compare(got, codes, wanted_codes(resolve(src, dst), codes), src, dst, True)


def _side(machine: Machine, dtype: DType, n: int, shift: int) -> Any:
    offset = shift * dtype.code_numpy.itemsize
    return machine.empty(offset + dtype.nbytes(n))[offset:]


def main(argv: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", action="store_true", help="one launch of every kernel alone")
    chosen = list(cases([(src, dst) for src in NUMERIC for dst in NUMERIC]))
    if parser.parse_args(argv).kernels:
        chosen = chosen[:KERNELS]
    wrong = sweep(machine or _gpu(), chosen)
    print("\n".join([*wrong[:20], f"{len(chosen):,} launches; {len(wrong)} differ"]))
    return int(bool(wrong))


def _gpu() -> Machine:
    import cupy

    # A pool would place arrays next to each other, so that accesses beyond their ends would not be detected.
    cupy.cuda.set_allocator(None)
    return Machine()


if __name__ == "__main__":
    sys.exit(main())
