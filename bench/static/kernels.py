# SPDX-License-Identifier: Apache-2.0
"""Static facts of kernels on an architecture: compile, disassemble, find the path of a full tile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from gpucast.codegen.spec import CastSpec, KernelSpec

from bench import cubin
from bench.static.paths import Path, full_tile, loops
from bench.static.sass import Block, Instruction, parse
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, BatchSpec, tiles_of
from gpucast.codegen.cast_kernel import KernelSource, Shape, join
from gpucast.compile import compiler, disassembler
from gpucast.core.rule import CastRule, resolve

#: Kernels per program. They share the prelude and the start of the disassembler, which take most of the time.
BATCH = 25
#: NVRTC hardly lets more threads than these work at a time.
_THREADS = 4


@dataclass(frozen=True)
class StaticKernel:
    """Facts from the machine code of one kernel. Counts are per thread, on the path of a full aligned tile."""

    source: KernelSource
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
        return (self.source.more or "").startswith("gpucast::Arrays")

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
        return self.source.src_bits

    @property
    def turns(self) -> int:
        """How often a thread goes through the loops of the path: until all of its elements are loaded and stored."""
        sides = ((self.loads, self.src_bits), (self.stores, self.rule.dst.bits))
        done = [(sum(width * count for width, count in counts.items()), bits) for counts, bits in sides]
        turns = [self.source.elements * bits // 8 // bytes for bytes, bits in done if bytes]
        return max(1, *turns) if self.loop and turns else 1

    @property
    def per_element(self) -> float:
        """Instructions per element."""
        return (self.instructions + (self.turns - 1) * len(self.repeated)) / self.source.elements

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


def compiled(sources: Sequence[KernelSource], arch: str) -> list[Code]:
    """The machine code of kernels with the same prelude, compiled as one program. Rare branches are marked."""
    structs = dict(row for source in sources for row in source.structs)
    text = join(sources[0].prelude, structs, [source.kernel for source in sources])
    made = compiler.compile(f"#define GPUCAST_MARK_RARE\n{text}", sources[0].name, arch)
    facts, code = cubin.kernels(made.code), parse(disassembler.disassemble(made.code, disassembler.GRAPH).decode())
    return [Code(code[source.name], facts[source.name], made.log) for source in sources]


def facts(source: KernelSource, arch: str, code: Code, extra_bytes: int = 0, path: Path | None = None) -> StaticKernel:
    """The facts of one kernel from its machine code. Where no path has just the bytes of a tile, as in a loop over its
    elements, it is the one with the most accesses.

    `extra_bytes`: bytes that every thread stores in addition to its tile. `path`: another one than that of a tile.
    """
    flow = code.blocks
    load, store = source.elements * source.src_bits // 8, source.elements * source.rule.dst.bits // 8 + extra_bytes
    if path is None:
        path = full_tile(flow, load, store)
        if source.shape != "contiguous" and sum(width * count for width, count in path.stores.items()) != store:
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


@dataclass(frozen=True)
class InBatchSpec(KernelSpec[KernelSource]):
    """The kernel of `gpucast.cast_many` for this cast alone, as a source like that of a contiguous kernel."""

    cast: CastSpec

    def source(self) -> KernelSource:
        one, many = self.cast.source(), BatchSpec((self.cast,), ARGUMENT_BYTES[-1]).source()
        return replace(
            one,
            name=many.name,
            prelude=many.prelude,
            structs=tuple(many.structs.items()),
            kernel=many.kernel,
            elements=tiles_of(self.cast) * one.tile,
            threads=many.threads,
            more=many.more,
        )


def measure(
    rules: Iterable[CastRule],
    arch: str,
    shape: Shape | Literal["many"] = "contiguous",
    advance: Callable[[int], object] = lambda done: None,
) -> list[StaticKernel]:
    """The kernels of these rules for an architecture such as "sm_90", in order. `advance` gets how many are done.

    The shape "many" stands for batch kernels of contiguous arrays (see `InBatchSpec`).

    DeviceUnavailable without NVRTC, DisassemblerMissing without nvdisasm, UnknownCode for machine code that cannot be
    followed.
    """
    specs = (InBatchSpec(CastSpec(rule)) if shape == "many" else CastSpec(rule, shape) for rule in rules)
    sources = [spec.source() for spec in specs]

    def work(batch: Sequence[KernelSource]) -> list[StaticKernel]:
        found = [facts(source, arch, code) for source, code in zip(batch, compiled(batch, arch), strict=True)]
        advance(len(batch))
        return found

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        try:
            return [kernel for batch in executor.map(work, _batches(sources)) for kernel in batch]
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _batches(sources: Sequence[KernelSource]) -> list[list[KernelSource]]:
    """Neighbours with the same prelude, as many as go into a program."""
    batches: list[list[KernelSource]] = []
    for source in sources:
        if not batches or len(batches[-1]) == BATCH or source.prelude != batches[-1][0].prelude:
            batches.append([])
        batches[-1].append(source)
    return batches
