# SPDX-License-Identifier: Apache-2.0
"""NVIDIA machine code as nvdisasm prints it (SASS): the instructions of every kernel, and its basic blocks.

It knows which instructions change control flow, access memory or set predicates, but nothing of casts.
Every architecture from sm_75 on prints the same syntax: ``/*0a40*/  @!P0 LDG.E.128 R4, desc[UR4][R2.64+0x10] ;``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\(([^)]+)\)")
_PREDICATE = re.compile(r"!?(U?P[0-9T])")

#: Opcodes that read or write memory -> (where, whether they write).
_MEMORY = {
    "LDG": ("global", False),
    "STG": ("global", True),
    "LD": ("global", False),
    "ST": ("global", True),
    "LDS": ("shared", False),
    "STS": ("shared", True),
    "LDL": ("local", False),
    "STL": ("local", True),
}
_WIDTH = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
#: These set two predicates at most, and read others behind them.
_TWO_PREDICATES = ("SETP", "PLOP3")


class UnknownCode(ValueError):
    """Machine code whose control flow is not understood. The message names the instruction."""


@dataclass(frozen=True)
class Access:
    """What one instruction reads or writes in memory, per thread."""

    #: "global", "shared" or "local".
    space: str
    store: bool
    #: Bytes.
    width: int


@dataclass(frozen=True)
class Instruction:
    address: int
    #: Such as "P0" or "!UP1"; "" for an instruction that always takes effect.
    guard: str
    #: With its modifiers, such as "LDG.E.128".
    opcode: str
    operands: tuple[str, ...]
    #: The address of the label among its operands.
    target: int | None = None

    @cached_property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def conditional(self) -> bool:
        """Whether it may have no effect: because of its guard, or, for a branch, a condition among its operands."""
        if self.guard not in ("", "PT", "UPT"):
            return True
        return self.base == "BRA" and any(not _TARGET.search(operand) for operand in self.operands)

    @cached_property
    def access(self) -> Access | None:
        if self.base not in _MEMORY or self.guard in ("!PT", "!UPT"):
            return None
        space, store = _MEMORY[self.base]
        widths = [_WIDTH[part] for part in self.opcode.split(".")[1:] if part in _WIDTH]
        return Access(space, store, max(widths, default=4))

    def sets(self) -> set[str]:
        """The predicates that it sets: those directly after its result, or that are its result."""
        found = list[str]()
        for number, operand in enumerate(self.operands):
            match = _PREDICATE.fullmatch(operand)
            if match:
                found.append(match[1])
            elif number > 0:
                break
        return set(found[:2] if any(part in self.base for part in _TWO_PREDICATES) else found)

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{self.address:04x}  {guard:>6}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Block:
    """Instructions that are entered at the first and left after the last; successors by their index in the list."""

    instructions: list[Instruction]
    successors: list[int]
    #: Whether the thread may end after the last one.
    exits: bool


def parse(text: str) -> dict[str, list[Instruction]]:
    """The instructions of every kernel in the text of nvdisasm, by the kernel's name, by address."""
    kernels: dict[str, list[Instruction]] = {}
    for name, lines in _sections(text):
        labels: dict[str, int] = {}
        waiting: list[str] = []
        raw: list[tuple[int, str, str, str]] = []
        for line in lines:
            label = _LABEL.match(line)
            if label:
                waiting.append(label[1])
                continue
            match = _INSTRUCTION.match(line)
            if match:
                address = int(match[1], 16)
                labels.update(dict.fromkeys(waiting, address))
                waiting.clear()
                raw.append((address, match[2] or "", match[3], match[4]))
        kernels[name] = [_instruction(*parts, labels) for parts in raw]
    return kernels


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section or line.startswith("//---"):
            if name:
                yield name, lines
            name, lines = section[1] if section else "", []
        else:
            lines.append(line)
    if name:
        yield name, lines


def _instruction(address: int, guard: str, opcode: str, rest: str, labels: dict[str, int]) -> Instruction:
    match = _TARGET.search(rest)
    target = labels.get(match[1]) if match else None
    if target is not None:
        # Labels are replaced by addresses, because their numbers depend on the rest of the program.
        rest = _TARGET.sub(f"`({target:#06x})", rest)
    operands = tuple(part.strip() for part in rest.split(",")) if rest else ()
    return Instruction(address, guard, opcode, operands, target)


def blocks(instructions: list[Instruction]) -> list[Block]:
    """The basic blocks that the first instruction reaches, in the order of their addresses.

    A function in the same kernel continues after each of its calls. UnknownCode for a jump whose target is known only
    at run time.
    """
    index = {instruction.address: number for number, instruction in enumerate(instructions)}
    returns = [number + 1 for number, instruction in enumerate(instructions) if instruction.base == "CALL"]
    # First instruction of a block -> where the threads of each barrier reconverge, as far as known there.
    known: dict[int, Meetings] = {0: {}}
    jumps: dict[int, list[int]] = {}
    todo = [0]
    while todo:
        number = todo.pop()
        meetings = known[number]
        while True:
            instruction = instructions[number]
            if instruction.base == "BSSY":
                meetings = {**meetings, instruction.operands[0]: frozenset([index[_target(instruction)]])}
            following = _following(instruction, number, index, meetings, returns)
            if following != [number + 1] or instruction.base == "EXIT":
                jumps[number] = following
            else:
                jumps.pop(number, None)
                if number + 1 not in known:
                    number += 1
                    continue
            for other in following:
                merged = _merged(known.get(other, {}), meetings)
                if other not in known or merged != known[other]:
                    known[other] = merged
                    todo.append(other)
            break
    for number, following in jumps.items():
        if instructions[number].base == "BSYNC" and not following:
            raise UnknownCode(f"sass: nothing says where the threads of '{instructions[number]}' meet")
    starts = sorted(known)
    place = {start: number for number, start in enumerate(starts)}
    found = []
    for start in starts:
        end = start
        while end not in jumps and end + 1 not in known:
            end += 1
        following = [place[number] for number in jumps.get(end, [end + 1])]
        found.append(Block(instructions[start : end + 1], following, instructions[end].base == "EXIT"))
    return found


Meetings = dict[str, frozenset[int]]


def _merged(some: Meetings, others: Meetings) -> Meetings:
    return {name: some.get(name, frozenset()) | others.get(name, frozenset()) for name in {*some, *others}}


def _target(instruction: Instruction) -> int:
    if instruction.target is None:
        raise UnknownCode(f"sass: the target of '{instruction}' is unknown")
    return instruction.target


def _following(
    instruction: Instruction, number: int, index: dict[int, int], meetings: Meetings, returns: list[int]
) -> list[int]:
    """The numbers of the instructions that may come after this one."""
    base = instruction.base
    if base in ("BRA", "CALL"):
        found = [index[_target(instruction)]]
    elif base == "RET":
        found = returns
    elif base in ("EXIT", "KILL"):
        found = []
    elif base == "BSYNC":
        # May be empty so far: a call from elsewhere seems to return here too, and may be visited first.
        found = sorted(meetings.get(instruction.operands[0], ()))
    elif base.startswith(("BRX", "JM", "UBR")):
        raise UnknownCode(f"sass: the target of '{instruction}' is unknown")
    else:
        return [number + 1]
    return found + ([number + 1] if instruction.conditional else [])
