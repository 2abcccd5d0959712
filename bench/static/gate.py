# SPDX-License-Identifier: Apache-2.0
"""What the machine code of every kernel must keep, and a processor's one flat memory does not show.

No shared address is used in another way than by instructions for shared memory: a GPU that stores to it as global
memory stops. No local memory, which is what registers spill to. No warning of the compiler.

``python -m bench.static.gate`` asks this of all kernels, or of a sample, for several architectures. All kernels take
hours: ``--sample 40 --shard 0`` to ``--shard 39`` are all of them, in parts. Nothing runs on a GPU. The exit code is 1
if a kernel fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bench import cubin
from bench.static.catalog import add_options, all_kernels, programs, uncached
from gpucast.cli.processes import processes
from gpucast.cli.progress import progress_bar
from gpucast.kernel import disassembler
from gpucast.kernel.kernel import Kernel, program

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


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    kernels = all_kernels(given.sample, given.only, given.shard)
    problems: list[str] = []
    for arch in given.arch:
        found = gate(kernels, arch, given.jobs)
        print(f"{arch}: {counts(found)}", flush=True)
        problems += [problem for one in found for problem in one.problems()]
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return int(bool(problems))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.static.gate", description=__doc__)
    add_options(parser)
    return parser


def counts(kernels: Iterable[Gated]) -> Counts:
    found = list(kernels)
    local = [one.local for one in found if one.local]
    generic = sum(one.generic > 0 for one in found)
    return Counts(len(found), generic, len(local), sum(local), sum(one.log != "" for one in found))


def gate(kernels: Sequence[Kernel], arch: str, jobs: int) -> list[Gated]:
    """The facts of kernels for an architecture such as "sm_90"."""
    some = list(programs(kernels, _PROGRAM))
    with processes(jobs) as executor, progress_bar(len(kernels), wanted=True, unit=" kernels") as advance:
        found: list[Gated] = []
        for of_program in executor.map(partial(of, arch=arch), some):
            found += of_program
            advance(len(of_program))
        return found


def of(kernels: Sequence[Kernel], arch: str) -> list[Gated]:
    """The facts of kernels that are compiled as one program."""
    made = uncached(program(kernels), kernels[0].name, arch)
    facts = cubin.kernels(made.code)
    generic = generic_addresses(disassembler.disassemble(made.code).decode())
    return [
        Gated(name, arch, generic[name], facts[name].local, facts[name].registers, made.log)
        for name in (kernel.name for kernel in kernels)
    ]


def generic_addresses(listing: str) -> dict[str, int]:
    """For each function of a listing of machine code the instructions that make generic addresses of shared ones."""
    parts = _FUNCTION.split(listing)[1:]
    return {name: len(_WINDOW.findall(code)) for name, code in zip(parts[::2], parts[1::2], strict=True)}


if __name__ == "__main__":
    raise SystemExit(main())
