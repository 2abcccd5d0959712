# SPDX-License-Identifier: Apache-2.0
"""What the machine code of kernels must keep, so that memory and not the processor limits the speed of a cast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.static.kernels import StaticKernel
from bench.static.model import JUDGE, judged

#: How much of its time a unit may work at the speed of a copy.
FULL = 0.75
#: The compute capabilities whose rates have a source, for which `FULL` is checked; for others it is only reported.
GATED = (90,)
#: The share of a copy that kernels of many arrays are to reach.
MANY = 0.93
#: Bytes of one access on the wider side.
VECTOR = 16


def _misses(archs: Sequence[str], sources: str, destinations: str, why: str) -> dict[tuple[str, str, str], str]:
    return {(arch, src, dst): why for arch in archs for src in sources.split() for dst in destinations.split()}


#: (architecture, source, destination) -> why the default rule of this pair misses what is checked. Entries that do not
#: apply are an error.
KNOWN: dict[tuple[str, str, str], str] = {
    **_misses(
        ("sm_80", "sm_90", "sm_100a"),
        "INT64 UINT64",
        "INT8 UINT8 INT16 UINT16 INT32 UINT32 INT4 UINT4 INT2 UINT2",
        "the assembler loads the halves that count alone, in narrower accesses to the same sectors",
    ),
}

_STORES = "a thread's 12 bytes of 6-bit codes are three stores, each of which touches a sector"
#: The same for `cast_many`, beside `KNOWN`.
KNOWN_MANY: dict[tuple[str, str, str], str] = {
    **_misses(("sm_90",), "UINT2 INT2 UINT4 INT4 FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2", "FLOAT6E2M3 FLOAT6E3M2", _STORES),
    **_misses(
        ("sm_90",),
        "UINT2 INT2",
        "INT64 UINT64 DOUBLE",
        "a thread's results lie farther apart than a sector, of which each store writes a half",
    ),
}


def fullest(kernel: StaticKernel) -> float:
    """The share of its time that the busiest unit works at the speed of a copy; NaN for a kernel of no known GPU."""
    if kernel.capability not in JUDGE:
        return math.nan
    of = judged(kernel)
    return of.use[of.busiest]


def widths(kernel: StaticKernel) -> tuple[int, int]:
    """Bytes that every load and every store must have at least: 16 on the wider side, what belongs to these on the
    other. Of 6-bit elements 16 come in 12 bytes, which only words of 4 fit."""
    sides = kernel.src_bits, kernel.rule.dst.bits
    elements = max(VECTOR * 8 // max(sides), *(8 // math.gcd(bits, 8) for bits in sides))
    if 6 in sides:
        elements = 16
    load, store = (4 if bits == 6 else min(VECTOR, elements * bits // 8) for bits in sides)
    return load, store


def problems(kernel: StaticKernel) -> list[str]:
    """The problems of a kernel; usually none.

    Units are only checked for the default rule of a pair. In the strided and the transposed shape only spills are a
    problem; `bench.static.layouts` has their goals.
    """
    found = [f"{kernel.local} bytes of local memory: registers spill"] if kernel.local else []
    if kernel.source.shape != "contiguous":
        return found
    if kernel.loop:
        found.append("the way of a full tile has a loop, so that its instructions are not counted")
    if kernel.default and kernel.capability in GATED:
        of = judged(kernel)
        if kernel.many:
            found += [f"{of}; the goal is {100 * MANY:.0f} %"] if of.share < MANY else []
        elif of.use[of.busiest] > FULL:
            found.append(f"{of.busiest} is {of.use[of.busiest]:.3f} full at the speed of a copy, over {FULL}")
    # A table in shared memory is filled from global memory.
    table = -(-kernel.shared // kernel.source.threads)
    for what, counts, bits, least, more in (
        ("loads", kernel.loads, kernel.src_bits, widths(kernel)[0], table),
        ("stores", kernel.stores, kernel.rule.dst.bits, widths(kernel)[1], 0),
    ):
        tile = kernel.source.elements * bits // 8
        wide = sum(width * count for width, count in counts.items() if width >= least)
        total = sum(width * count for width, count in counts.items())
        if what == "loads" and total == 0:
            continue  # The result is the same for every source.
        if not tile <= total <= tile + more:
            found.append(f"{what} of {total} bytes where the elements of a thread have {tile}")
        elif wide < tile:
            found.append(f"{what} of {min(counts)} bytes at a time, not of {least}")
    return found


def verdict(kernels: Sequence[StaticKernel], known: Mapping[tuple[str, str, str], str] | None = None) -> list[str]:
    """Why the check fails, a line for each reason: unknown problems, and known problems that no longer exist."""
    failures: list[str] = []
    for kernel in kernels:
        pair = (kernel.arch, kernel.rule.src.name, kernel.rule.dst.name)
        found = problems(kernel)
        expected = (KNOWN | KNOWN_MANY if kernel.many else KNOWN) if known is None else known
        if kernel.default and pair in expected:
            found = [] if found else ["keeps what is checked; take it out of the known misses"]
        failures += [f"{kernel.arch} {kernel.source.name}: {problem}" for problem in found]
    return failures
