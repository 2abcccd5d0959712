# SPDX-License-Identifier: Apache-2.0
"""What the machine code of kernels must keep, so that memory and not the processor limits the speed of a cast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.static.kernels import Cast, Code, StaticKernel, compiled
from bench.static.model import Estimate, estimate
from gpucast.kernel.kernel import Part

#: How much of its time a unit may work at the speed of a copy.
FULL = 0.75
#: The compute capabilities whose rates have a source, for which goals are checked; for others they are only reported.
GATED = (90,)
#: Those of which no unit may be too full in casts of contiguous arrays: of sm_100 by the rates of Hopper.
UNITS = (90, 100)
#: The share of a copy that kernels of many arrays are to reach.
MANY = 0.93
#: Bytes of one access on the wider side.
VECTOR = 16

#: What a kernel is known by: the architecture, the kind of kernel, and the rest of its name.
Key = tuple[str, str, str]


def _misses(archs: str, kind: str, sources: str, destinations: str, why: str) -> dict[Key, str]:
    pairs = [f"{src} to {dst}" for src in sources.split() for dst in destinations.split()]
    return {(arch, kind, pair): why for arch in archs.split() for pair in pairs}


_INTEGERS = "INT8 UINT8 INT16 UINT16 INT32 UINT32 INT4 UINT4"
_HALVES = "the assembler loads the halves that count alone, in narrower accesses to the same sectors"
_STORES = "a thread's 12 bytes of 6-bit codes are three stores, each of which touches a sector"
_APART = "a thread's results lie farther apart than a sector, of which each store writes a half"
#: Why kernels miss what is checked. Entries that do not apply are an error.
KNOWN: dict[Key, str] = {
    **_misses("sm_80 sm_90", "contiguous", "INT64 UINT64", f"{_INTEGERS} INT2 UINT2", _HALVES),
    **_misses("sm_100a", "contiguous", "INT64 UINT64", _INTEGERS, _HALVES),
    **_misses("sm_80 sm_90", "many", "INT64 UINT64", f"{_INTEGERS} INT2 UINT2", _HALVES),
    **_misses("sm_100a", "many", "INT64 UINT64", _INTEGERS, _HALVES),
    **_misses(
        "sm_90", "many", "UINT2 INT2 UINT4 INT4 FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2", "FLOAT6E2M3 FLOAT6E3M2", _STORES
    ),
    **_misses("sm_90", "many", "UINT2 INT2", "INT64 UINT64 DOUBLE", _APART),
}


@dataclass(frozen=True)
class Checked:
    """A kernel beside its goal."""

    kind: str
    name: str
    kernel: StaticKernel
    #: The share of a copy that it is to reach; 0 where there is none.
    goal: float = 0.0
    #: Bytes read and written per element, where they are not one source and one result.
    moved: float | None = None
    #: Whether loads must be of whole vectors.
    wide: bool = False

    @property
    def estimate(self) -> Estimate:
        return estimate(self.kernel, self.moved)

    @property
    def key(self) -> Key:
        return self.kernel.arch, self.kind, self.name

    def __str__(self) -> str:
        return f"{self.kernel.arch} {self.kind} {self.name}"

    def problems(self) -> list[str]:
        """Usually none."""
        kernel, found = self.kernel, []
        if kernel.local:
            found.append(f"{kernel.local} bytes of local memory: registers spill")
        if kernel.log:
            found.append(f"the compiler says: {kernel.log}")
        if kernel.capability in GATED and self.estimate.share < self.goal:
            found.append(f"{self.estimate}; the goal is {100 * self.goal:.0f} %")
        tile = kernel.source.kernel.elements * kernel.src_bits // 8
        if self.wide and _bytes(kernel.loads, min(VECTOR, tile)) < tile:
            found.append(f"loads of {min(kernel.loads, default=0)} bytes at a time, not of {min(VECTOR, tile)}")
        return found

    def line(self) -> str:
        """For a report."""
        of, estimate = self.kernel, self.estimate
        turns = f" in {of.turns} turns" if of.loop else ""
        units = f"{estimate.busiest} {estimate.use[estimate.busiest]:.2f}, blocks {estimate.use['blocks']:.2f}"
        memory = f"loads {of.loads}, stores {of.stores}, {of.shared} bytes shared"
        threads = f"{of.registers} registers, {estimate.threads} threads, {estimate.in_flight / 1024:.0f} KiB in flight"
        return f"{self!s:66} {of.per_element:6.2f} instr/el{turns}, {estimate} ({units}), {memory}, {threads}"


class Asked(NamedTuple):
    """A kernel to be checked, and what makes it of an architecture and its machine code there."""

    source: Cast
    of: Callable[[str, Code], Checked]


def checked(asked: Iterable[Asked], arch: str) -> list[Checked]:
    """Kernels for an architecture such as "sm_90", in order. Those with the same parts are one program."""
    every, alike, codes = list(asked), dict[tuple[Part, ...], dict[str, Cast]](), dict[str, Code]()
    for one in every:
        alike.setdefault(one.source.kernel.parts, {})[one.source.kernel.name] = one.source
    for sources in alike.values():
        codes |= zip(sources, compiled(list(sources.values()), arch), strict=True)
    return [one.of(arch, codes[one.source.kernel.name]) for one in every]


class CheckedCast(Checked):
    """The kernel of a cast, as `kind` "contiguous", "strided" or "many"."""

    def problems(self) -> list[str]:
        return problems(self.kernel)


def of_casts(kernels: Sequence[StaticKernel]) -> list[Checked]:
    """Kernels of casts. Those of a default rule are known by their pair."""
    found: list[Checked] = []
    for kernel in kernels:
        kind = kernel.source.shape
        rule, pair = kernel.rule, f"{kernel.rule.src.name} to {kernel.rule.dst.name}"
        # An integer is not rounded to another one: what wraps is the cast of the default rule.
        default = kernel.default or (rule.src.family == rule.dst.family == "int" and rule.overflow == "wrap")
        found.append(CheckedCast(kind, pair if default else kernel.source.kernel.name, kernel))
    return found


def verdict(kernels: Sequence[Checked], known: Mapping[Key, str] = KNOWN) -> list[str]:
    """Why the check fails, a line for each reason: unknown problems, and known problems that no longer exist."""
    failures: list[str] = []
    for one in kernels:
        found = one.problems()
        if one.key in known:
            found = [] if found else ["keeps what is checked; take it out of the known misses"]
        failures += [f"{one}: {problem}" for problem in found]
    return failures


def fullest(kernel: StaticKernel) -> float:
    """The share of its time that the busiest unit works at the speed of a copy."""
    of = estimate(kernel)
    return of.use[of.busiest]


def widths(kernel: StaticKernel) -> tuple[int, int]:
    """Bytes that every load and every store must have at least: 16 on the wider side, what belongs to these on the
    other. Of 6-bit elements 16 come in 12 bytes, which only words of 4 fit; beside 64 bits four come in three bytes."""
    sides = kernel.src_bits, kernel.rule.dst.bits
    elements = max(VECTOR * 8 // max(sides), *(8 // math.gcd(bits, 8) for bits in sides))
    if 6 in sides:
        elements = 16
    of_six = 1 if 64 in sides else 4
    load, store = (of_six if bits == 6 else min(VECTOR, elements * bits // 8) for bits in sides)
    return load, store


def problems(kernel: StaticKernel) -> list[str]:
    """The problems of the kernel of a cast; usually none. Units are only checked for the default rule of a pair, and of
    other shapes than the contiguous one only spills (`bench.static.layouts` has their goals)."""
    found = [f"{kernel.local} bytes of local memory: registers spill"] if kernel.local else []
    if kernel.source.shape not in ("contiguous", "many"):
        return found
    if kernel.loop:
        found.append("the way of a full tile has a loop, so that its instructions are not counted")
    if kernel.default and kernel.capability in (GATED if kernel.many else UNITS):
        of = estimate(kernel)
        if kernel.many:
            found += [f"{of}; the goal is {100 * MANY:.0f} %"] if of.share < MANY else []
        elif of.use[of.busiest] > FULL:
            found.append(f"{of.busiest} is {of.use[of.busiest]:.3f} full at the speed of a copy, over {FULL}")
    # A table in shared memory is filled from global memory.
    table = -(-kernel.shared // kernel.source.kernel.threads)
    for what, counts, bits, least, more in (
        ("loads", kernel.loads, kernel.src_bits, widths(kernel)[0], table),
        ("stores", kernel.stores, kernel.rule.dst.bits, widths(kernel)[1], 0),
    ):
        tile, total = kernel.source.kernel.elements * bits // 8, _bytes(counts)
        if what == "loads" and total == 0:
            continue  # The result is the same for every source.
        if not tile <= total <= tile + more:
            found.append(f"{what} of {total} bytes where the elements of a thread have {tile}")
        elif _bytes(counts, least) < tile:
            found.append(f"{what} of {min(counts)} bytes at a time, not of {least}")
    return found


def _bytes(counts: Mapping[int, int], least: int = 0) -> int:
    """The bytes of accesses that have at least so many."""
    return sum(width * count for width, count in counts.items() if width >= least)
