# SPDX-License-Identifier: Apache-2.0
"""Static facts of the kernel of a rule on an architecture: compile, disassemble, find the path of a full tile."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from bench import cubin
from bench.static.paths import Path, full_tile, reach
from bench.static.sass import Instruction, blocks, parse
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, BatchSpec, tiles_of
from gpucast.codegen.cast_kernel import KernelSource, Shape, join
from gpucast.codegen.spec import CastSpec, KernelSpec
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
    #: All instructions issued from the entry to the exit: on the longest such path, and on the shortest.
    instructions: int
    shortest: int
    #: The same of the longest rare path; None if there is none. See `bench.static.paths`.
    rare: int | None
    #: Whether the path has a loop, so that the count includes only one iteration.
    loop: bool
    #: Branches, and exits under a condition.
    branches: int
    #: Global accesses: width in bytes -> how many.
    loads: dict[int, int]
    stores: dict[int, int]
    #: Reads from shared memory, and the bytes of it that a block has.
    shared_loads: int
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
    batches = list(_batches(sources))

    def work(batch: Sequence[KernelSource]) -> list[StaticKernel]:
        found = facts(batch, arch)
        advance(len(batch))
        return found

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as executor:
        try:
            return [kernel for batch in executor.map(work, batches) for kernel in batch]
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _batches(sources: Sequence[KernelSource]) -> Iterable[list[KernelSource]]:
    """Neighbours with the same prelude, as many as go into a program."""
    batch: list[KernelSource] = []
    for source in sources:
        if batch and (len(batch) == BATCH or source.prelude != batch[0].prelude):
            yield batch
            batch = []
        batch.append(source)
    if batch:
        yield batch


def facts(sources: Sequence[KernelSource], arch: str) -> list[StaticKernel]:
    """The kernels of one program. One alone is compiled as a cast would, so that it comes from the cache."""
    if len(sources) == 1:
        name, text = sources[0].name, sources[0].text
    else:
        structs = dict(row for source in sources for row in source.structs)
        name, text = "batch", join(sources[0].prelude, structs, [source.kernel for source in sources])
    compiled = compiler.compile(marked(text), name, arch)
    of_cubin = cubin.kernels(compiled.code)
    of_code = parse(disassembler.disassemble(compiled.code).decode())
    return [kernel(one, arch, of_code[one.name], of_cubin[one.name], compiled.log) for one in sources]


def marked(text: str) -> str:
    """The text of kernels with the instruction that `bench.static.paths` knows rare branches by."""
    return f"#define GPUCAST_MARK_RARE\n{text}"


def kernel(
    source: KernelSource,
    arch: str,
    instructions: list[Instruction],
    fact: cubin.CubinKernel,
    log: str,
    extra_bytes: int = 0,
    path: Path | None = None,
) -> StaticKernel:
    """The facts of one kernel from its machine code. Where no path has just the bytes of a tile, as in a loop over its
    elements, it is the one with the most accesses.

    `extra_bytes`: bytes that every thread stores in addition to its tile. `path`: another one than that of a tile.
    """
    flow = blocks(instructions)
    load, store = source.elements * source.src_bits // 8, source.elements * source.rule.dst.bits // 8 + extra_bytes
    if path is None:
        path = full_tile(flow, load, store)
        if source.shape != "contiguous" and sum(width * count for width, count in path.stores.items()) != store:
            path = full_tile(flow)
    executed = tuple(instruction for number in path.blocks for instruction in flow[number].instructions)
    loops = [number for number, reached in enumerate(reach(flow)) if number in reached]
    counts = Counter(instruction.base for instruction in executed)
    return StaticKernel(
        source=source,
        arch=arch,
        instructions=path.instructions,
        shortest=path.shortest,
        rare=path.rare,
        loop=path.loop,
        branches=counts["BRA"] + sum(one.base == "EXIT" and one.conditional for one in executed),
        loads=path.loads,
        stores=path.stores,
        shared_loads=counts["LDS"],
        shared=fact.shared,
        registers=fact.registers,
        local=fact.local,
        log=log,
        path=executed,
        repeated=tuple(one for number in path.blocks if number in loops for one in flow[number].instructions),
    )
