# SPDX-License-Identifier: Apache-2.0
"""Budgets for the machine code of kernels, with which memory and not the processor limits the speed of a cast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.static_kernels import StaticKernel

#: Instructions per byte moved, by compute capability: 70 % of what the GPU issues while its memory moves a byte. H200:
#: 132 SMs x 128 lanes x 1.83 GHz / 4.2 TB/s = 7.4. B200: 148 x 128 x 1.85 / 7.09 = 4.9.
PER_BYTE = {90: 5.2, 100: 3.5}
#: Instructions per element of a pair that moves less than one byte per element.
LEAST = 6.0
#: Extra instructions in which a thread of a batch kernel finds its array.
FINDING = 64
#: Bytes of one access on the wider side.
VECTOR = 16

_LOOK_UP = "an offset, a look-up and a code put in its place are five instructions per element"
_BY_FLOAT = "the way by a float is longer than the budget of so few bytes"


def _misses(archs: Sequence[str], sources: str, destinations: str, why: str) -> dict[tuple[str, str, str], str]:
    return {(arch, src, dst): why for arch in archs for src in sources.split() for dst in destinations.split()}


#: (architecture, source, destination) -> why the default rule of this pair exceeds its budget. Entries that do not
#: apply are an error.
KNOWN: dict[tuple[str, str, str], str] = {
    **_misses(
        ("sm_80", "sm_90", "sm_100a"),
        "INT64 UINT64",
        "INT8 UINT8 INT16 UINT16 INT32 UINT32 INT4 UINT4 INT2 UINT2",
        "the assembler loads the halves that count alone, in narrower accesses to the same sectors",
    ),
    **_misses(
        ("sm_100a",),
        "FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0",
        "INT4 UINT4 INT2 UINT2 FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2",
        _LOOK_UP,
    ),
    **_misses(("sm_100a",), "BOOL INT8 UINT8", "FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2", _LOOK_UP),
    **_misses(("sm_100a",), "FLOAT6E2M3", "INT4 UINT4 INT2 UINT2 FLOAT4E2M1 FLOAT6E3M2", _LOOK_UP),
    **_misses(("sm_100a",), "FLOAT6E3M2", "INT4 UINT4 INT2 UINT2 FLOAT4E2M1 FLOAT6E2M3", _LOOK_UP),
    **_misses(("sm_100a",), "INT16", "FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2", _BY_FLOAT),
    **_misses(("sm_100a",), "INT32 UINT32 INT64 FLOAT16", "FLOAT8E8M0", _BY_FLOAT),
    **_misses(("sm_100a",), "FLOAT16", "INT2 UINT2", _BY_FLOAT),
}


def budget(kernel: StaticKernel, results: int = 1) -> float | None:
    """Instructions per element that a kernel may take that writes `results` arrays; None if there is no budget for its
    architecture or shape."""
    per_byte = PER_BYTE.get(kernel.capability)
    if per_byte is None or kernel.source.shape != "contiguous":
        return None
    moved = kernel.moved + (results - 1) * kernel.rule.dst.bits / 8
    allowed = max(per_byte * moved, LEAST if moved < 1 else 0.0)
    return allowed + FINDING / kernel.source.elements if kernel.many else allowed


def over(kernel: StaticKernel, results: int = 1) -> float:
    """Instructions divided by the budget: up to 1 is within it. NaN without a budget."""
    allowed = budget(kernel, results)
    return math.nan if allowed is None else kernel.per_element / allowed


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

    The number of instructions is only checked for the default rule of a pair. In the strided shape only spills are a
    problem.
    """
    found = [f"{kernel.local} bytes of local memory: registers spill"] if kernel.local else []
    if kernel.source.shape != "contiguous":
        return found
    if kernel.loop:
        found.append("the way of a full tile has a loop, so that its instructions are not counted")
    allowed = budget(kernel)
    if kernel.default and allowed is not None and kernel.per_element > allowed:
        found.append(f"{kernel.per_element:.2f} instructions per element, over the budget of {allowed:.2f}")
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


def verdict(kernels: Sequence[StaticKernel], known: Mapping[tuple[str, str, str], str] = KNOWN) -> list[str]:
    """Why the check fails, a line for each reason: unknown problems, and known problems that no longer exist."""
    failures: list[str] = []
    for kernel in kernels:
        pair = (kernel.arch, kernel.rule.src.name, kernel.rule.dst.name)
        found = problems(kernel)
        if kernel.default and pair in known:
            found = [] if found or kernel.many else ["keeps its budget; take it out of the known misses"]
        failures += [f"{kernel.arch} {kernel.source.name}: {problem}" for problem in found]
    return failures
