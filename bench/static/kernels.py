# SPDX-License-Identifier: Apache-2.0
"""Static facts of kernels on an architecture: compile, disassemble, find the path of a full tile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from bench import cubin
from bench.static.paths import Path, full_tile, loops
from bench.static.sass import Block, Instruction, parse
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel import compiler, disassembler
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, Kind, batch_kernel
from gpucast.kernel.cast_kernel import Shape
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import Kernel, program

#: Kernels per program. They share the prelude and the start of the disassembler, which take most of the time.
BATCH = 25
#: NVRTC hardly lets more threads than these work at a time.
_THREADS = 4


class Cast(NamedTuple):
    """A kernel, and the cast that it does; "many" stands for a batch kernel of contiguous arrays."""

    kernel: Kernel
    rule: CastRule
    shape: Shape | Literal["many"] = "contiguous"

    @classmethod
    def of(cls, rule: CastRule, shape: Shape | Literal["many"] = "contiguous") -> Cast:
        """The plain cast by a rule."""
        if shape != "many":
            return cls(cast_kernel(rule, shape), rule, shape)
        kind = Kind(rule)
        many = batch_kernel((kind,), ARGUMENT_BYTES[-1]).kernel
        return cls(replace(many, elements=kind.tiles * kind.alone.tile, tile=kind.alone.tile), rule, shape)


@dataclass(frozen=True)
class StaticKernel:
    """Facts from the machine code of one kernel. Counts are per thread, on the path of a full aligned tile."""

    source: Cast
    arch: str
    #: All instructions issued from the entry to the exit.
    instructions: int
    #: Whether the path has a loop, so that the count includes only one iteration.
    loop: bool
    #: Global accesses: width in bytes -> how many.
    loads: dict[int, int]
    stores: dict[int, int]
    #: Bytes of shared memory of a block.
    shared: int
    registers: int
    #: Bytes of local memory: 0 unless registers spill.
    local: int
    #: The compiler's messages about the kernel's program; usually "".
    log: str
    #: The instructions of the path, in order, and those of them that are in loops.
    path: tuple[Instruction, ...]
    repeated: tuple[Instruction, ...]

    @property
    def rule(self) -> CastRule:
        return self.source.rule

    @property
    def many(self) -> bool:
        """Whether it is a batch kernel."""
        return self.source.shape == "many"

    @property
    def default(self) -> bool:
        """Whether the rule is that of a cast without attributes."""
        return self.rule == resolve(self.rule.src, self.rule.dst)

    @property
    def capability(self) -> int:
        """The compute capability of the device: 90 for sm_90 and for sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))

    @property
    def src_bits(self) -> int:
        return self.rule.src.bits

    @property
    def turns(self) -> int:
        """How often a thread goes through the loops of the path: until all of its elements are loaded and stored."""
        sides = ((self.loads, self.src_bits), (self.stores, self.rule.dst.bits))
        done = [(sum(width * count for width, count in counts.items()), bits) for counts, bits in sides]
        turns = [self.source.kernel.elements * bits // 8 // bytes for bytes, bits in done if bytes]
        return max(1, *turns) if self.loop and turns else 1

    @property
    def per_element(self) -> float:
        """Instructions per element."""
        return (self.instructions + (self.turns - 1) * len(self.repeated)) / self.source.kernel.elements

    @property
    def executed(self) -> tuple[Instruction, ...]:
        """What a thread executes, loops in all their turns."""
        return self.path + (self.turns - 1) * self.repeated

    @property
    def moved(self) -> float:
        """Bytes read and written per element."""
        return (self.src_bits + self.rule.dst.bits) / 8


@dataclass(frozen=True)
class Code:
    """What the compiler makes of one kernel."""

    blocks: list[Block]
    facts: cubin.CubinKernel
    log: str


def compiled(sources: Sequence[Cast], arch: str) -> list[Code]:
    """The machine code of kernels with the same parts, compiled as one program. Rare branches are marked."""
    names = [source.kernel.name for source in sources]
    text = program([source.kernel for source in sources])
    made = compiler.compile(f"#define GPUCAST_MARK_RARE\n{text}", names[0], arch)
    facts, code = cubin.kernels(made.code), parse(disassembler.disassemble(made.code, disassembler.GRAPH).decode())
    return [Code(code[name], facts[name], made.log) for name in names]


def facts(source: Cast, arch: str, code: Code, extra_bytes: int = 0, path: Path | None = None) -> StaticKernel:
    """The facts of one kernel from its machine code. Where no path has just the bytes of a tile, as in a loop over its
    elements, it is the one with the most accesses.

    `extra_bytes`: bytes that every thread stores in addition to its tile. `path`: another one than that of a tile.
    """
    flow = code.blocks
    elements, rule = source.kernel.elements, source.rule
    load, store = elements * rule.src.bits // 8, elements * rule.dst.bits // 8 + extra_bytes
    if path is None:
        path = full_tile(flow, load, store)
        stored = sum(width * count for width, count in path.stores.items())
        if source.shape not in ("contiguous", "many") and stored != store:
            path = full_tile(flow)
    turns = loops(flow)
    return StaticKernel(
        source=source,
        arch=arch,
        instructions=path.instructions,
        loop=path.loop,
        loads=path.loads,
        stores=path.stores,
        shared=code.facts.shared,
        registers=code.facts.registers,
        local=code.facts.local,
        log=code.log,
        path=tuple(one for number in path.blocks for one in flow[number].instructions),
        repeated=tuple(one for number in path.blocks if number in turns for one in flow[number].instructions),
    )


def measure(
    rules: Iterable[CastRule],
    arch: str,
    shape: Shape | Literal["many"] = "contiguous",
    advance: Callable[[int], object] = lambda done: None,
) -> list[StaticKernel]:
    """The kernels of these rules for an architecture such as "sm_90", in order. `advance` gets how many are done.

    DeviceUnavailable without NVRTC, DisassemblerMissing without nvdisasm, UnknownCode for machine code that cannot be
    followed.
    """
    sources = [Cast.of(rule, shape) for rule in rules]

    def work(batch: Sequence[Cast]) -> list[StaticKernel]:
        found = [facts(source, arch, code) for source, code in zip(batch, compiled(batch, arch), strict=True)]
        advance(len(batch))
        return found

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        try:
            return [kernel for batch in executor.map(work, _batches(sources)) for kernel in batch]
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _batches(sources: Sequence[Cast]) -> list[list[Cast]]:
    """Neighbours with the same parts, as many as go into a program."""
    batches: list[list[Cast]] = []
    for source in sources:
        if not batches or len(batches[-1]) == BATCH or source.kernel.parts != batches[-1][0].kernel.parts:
            batches.append([])
        batches[-1].append(source)
    return batches
