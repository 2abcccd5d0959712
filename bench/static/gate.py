# SPDX-License-Identifier: Apache-2.0
"""What the machine code of every kernel must keep, and a processor's one flat memory does not show.

No shared address is used in another way than by instructions for shared memory: a GPU that stores to it as global
memory stops. No local memory, which is what registers spill to. No word of the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple

from bench import cubin
from bench.static.catalog import Named, uncached
from gpucast.cli.progress import progress_bar
from gpucast.codegen.cast_kernel import join
from gpucast.compile import disassembler

#: Kernels of a program: they share the prelude and the start of the disassembler.
_PROGRAM = 8
#: What makes a generic address of a shared one, which global and generic instructions then use: the window of shared
#: memory, which sm_80 keeps in the first bank of constants.
_WINDOW = re.compile(r"\bSR_SWIN(?:HI|LO)\b|c\[0x0\]\[0x1[8c]\]")
_FUNCTION = re.compile(r"^\.text\.(\w+):$", re.MULTILINE)


@dataclass(frozen=True)
class Gated:
    """A kernel on an architecture."""

    name: str
    arch: str
    #: Instructions that make a generic address of a shared one.
    generic: int
    #: Bytes of local memory of a thread.
    local: int
    registers: int
    #: What the compiler says of the program; usually "".
    log: str

    def problems(self) -> list[str]:
        """A line for each reason why the kernel may not be used."""
        found = [f"{self.generic} instructions make generic addresses of shared memory"] if self.generic else []
        found += [f"{self.local} bytes of local memory"] if self.local else []
        found += [f"the compiler says: {self.log}"] if self.log else []
        return [f"{self.arch} {self.name}: {text}" for text in found]


class Counts(NamedTuple):
    """What a report says of an architecture."""

    kernels: int
    #: Kernels with generic addresses of shared memory, with local memory, its bytes together, and with warnings.
    generic: int
    spilling: int
    local: int
    warnings: int

    def __str__(self) -> str:
        return (
            f"{self.kernels} kernels: {self.generic} with shared through generic, {self.spilling} with local memory "
            f"({self.local} bytes), {self.warnings} with warnings"
        )


def counts(kernels: Iterable[Gated]) -> Counts:
    found = list(kernels)
    local = [one.local for one in found if one.local]
    generic = sum(one.generic > 0 for one in found)
    return Counts(len(found), generic, len(local), sum(local), sum(one.log != "" for one in found))


def gate(kernels: Sequence[Named], arch: str, jobs: int) -> list[Gated]:
    """The facts of kernels for an architecture such as "sm_90"."""
    programs = list(_programs(kernels))
    # Forked children would inherit the state of libraries that are not safe to fork.
    with (
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor,
        progress_bar(len(kernels), wanted=True, unit=" kernels") as advance,
    ):
        found: list[Gated] = []
        for of_program in executor.map(partial(of, arch=arch), programs):
            found += of_program
            advance(len(of_program))
        return found


def _programs(kernels: Sequence[Named]) -> Iterator[list[Named]]:
    """Kernels with the same prelude, none of a name twice."""
    alike: dict[tuple[str, int], list[Named]] = {}
    seen: dict[str, int] = {}
    for kernel in kernels:
        seen[kernel.name] = seen.get(kernel.name, 0) + 1
        source: Any = kernel.spec.source()
        alike.setdefault((source.prelude, seen[kernel.name]), []).append(kernel)
    for each in alike.values():
        rest = iter(each)
        while program := list(islice(rest, _PROGRAM)):
            yield program


def of(program: Sequence[Named], arch: str) -> list[Gated]:
    """The facts of kernels that are compiled as one program."""
    sources: list[Any] = [kernel.spec.source() for kernel in program]
    structs = {name: text for source in sources for name, text in dict(source.structs).items()}
    text = join(sources[0].prelude, structs, [source.kernel for source in sources])
    made = uncached(text, sources[0].name, arch)
    facts = cubin.kernels(made.code)
    generic = generic_addresses(disassembler.disassemble(made.code).decode())
    return [
        Gated(name, arch, generic[name], facts[name].local, facts[name].registers, made.log)
        for name in (source.name for source in sources)
    ]


def generic_addresses(listing: str) -> dict[str, int]:
    """For each function of a listing of machine code the instructions that make generic addresses of shared ones."""
    parts = _FUNCTION.split(listing)[1:]
    return {name: len(_WINDOW.findall(code)) for name, code in zip(parts[::2], parts[1::2], strict=True)}
