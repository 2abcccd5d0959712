# SPDX-License-Identifier: Apache-2.0
"""Facts about kernels from their machine code: registers, memory, and what a thread executes for a full tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench import cubin
from bench.static.calls import Pass
from bench.static.catalog import programs
from bench.static.paths import Path, by_wide_accesses, full_tile, loops, reach
from bench.static.sass import Block, Instruction, UnknownCode, parse
from gpucast.kernel import compiler, disassembler
from gpucast.kernel.kernel import Kernel, program

#: Kernels of a program: they share the prelude and the start of the disassembler, which take most of the time.
_PROGRAM = 24
#: Bytes that some threads store beside their elements, such as scales.
_BESIDE = (0, 1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Code:
    """What the compiler makes of one kernel."""

    blocks: list[Block]
    facts: cubin.CubinKernel
    #: What it says; usually "".
    log: str


@dataclass(frozen=True)
class Measured:
    """A pass on an architecture. Counts are of a thread, on the path of a full tile, loops in all their turns."""

    of: Pass
    arch: str
    facts: cubin.CubinKernel
    log: str
    path: tuple[Instruction, ...]
    #: Those of the path that are in loops, and how often a thread goes through these.
    repeated: tuple[Instruction, ...]
    turns: int
    #: Whether the path has all bytes of a tile; else it has those of wide accesses (`by_wide_accesses`).
    exact: bool

    @property
    def capability(self) -> int:
        """The compute capability of the device."""
        return capability(self.arch)

    @property
    def instructions(self) -> int:
        return len(self.path) + (self.turns - 1) * len(self.repeated)

    @property
    def executed(self) -> Iterable[Instruction]:
        """All instructions in order, as far as estimates need it: the turns of a loop after the path."""
        yield from self.path
        for _ in range(self.turns - 1):
            yield from self.repeated

    @property
    def barriers(self) -> int:
        return sum(one.base == "BAR" for one in self.executed)


def capability(arch: str) -> int:
    """The compute capability of an architecture: 90 of sm_90 and of sm_90a."""
    return int(arch.removeprefix("sm_").rstrip("af"))


def codes(kernels: Iterable[Kernel], arch: str) -> dict[Kernel, Code]:
    """The machine code of kernels for an architecture such as "sm_90". Rare branches are marked.

    DeviceUnavailable without NVRTC, DisassemblerMissing without nvdisasm, UnknownCode for code that cannot be followed.
    """
    found: dict[Kernel, Code] = {}
    for some in programs(dict.fromkeys(kernels), _PROGRAM):
        found |= zip(some, _compiled(some, arch), strict=True)
    return found


def _compiled(kernels: Sequence[Kernel], arch: str) -> list[Code]:
    made = compiler.compile(f"#define GPUCAST_MARK_RARE\n{program(kernels)}", kernels[0].name, arch)
    facts, code = cubin.kernels(made.code), parse(disassembler.disassemble(made.code, disassembler.GRAPH).decode())
    return [Code(code[one.name], facts[one.name], made.log) for one in kernels]


def measured(of: Pass, arch: str, code: Code) -> Measured:
    """The facts of a pass from the machine code of its kernel."""
    flow = code.blocks
    first = of.kernel.stays_from
    loops_here = of.kernel.turn > 0 and (first is None or capability(arch) >= first)
    turn = of.kernel.turn * of.kernel.dtypes[0].bits / 8 if loops_here else 0
    turns = max(1, round(of.load / turn)) if turn else 1
    path, exact = _path(flow, of.load / turns, of.store / turns)
    turning = _main_loop(flow, path) if turn else loops(flow)
    repeated = [one for number in path.blocks if number in turning for one in flow[number].instructions]
    if not turn:
        sides = ((of.load, path.loads), (of.store, path.stores))
        turns = max((round(wanted / total) for wanted, counts in sides if (total := _total(counts))), default=1)
    return Measured(
        of,
        arch,
        code.facts,
        code.log,
        tuple(one for number in path.blocks for one in flow[number].instructions),
        tuple(repeated),
        max(1, turns) if repeated else 1,
        exact,
    )


def _main_loop(flow: list[Block], path: Path) -> set[int]:
    """The blocks of the loop in which a path stores: other loops come before it, once."""
    onward = reach(flow)
    stores = {
        number
        for number in path.blocks
        for one in flow[number].instructions
        if one.access is not None and one.access.store and one.access.space == "global" and number in onward[number]
    }
    return {other for number in stores for other in onward[number] if number in onward[other]}


def _path(flow: list[Block], loaded: float, stored: float) -> tuple[Path, bool]:
    """The path of a thread that has a full tile of so many bytes, and whether all of these tell it apart."""
    load, store = math.ceil(loaded), round(stored)
    try:
        return full_tile(flow, load, [store + beside for beside in _BESIDE]), True
    except UnknownCode:
        return by_wide_accesses(flow, load, store), False


def _total(counts: Mapping[int, int]) -> int:
    return sum(width * count for width, count in counts.items())


def per_element(passes: Sequence[Measured], elements: int) -> float:
    """Instructions for an element, of all passes."""
    return math.fsum(one.instructions * one.of.threads for one in passes) / elements
