# SPDX-License-Identifier: Apache-2.0
"""NVIDIA machine code as nvdisasm prints its control flow (SASS): the instructions and basic blocks of every kernel.

It knows which instructions access memory or set predicates, but nothing of casts. nvdisasm prints a graph in the DOT
language, whose nodes are blocks with lines such as ``@!P0 LDG.E.128 R4, desc[UR4][R2.64+0x10] ;``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

_CLUSTER = re.compile(r'^subgraph "cluster_([^"]+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_NODE = re.compile(r'^"([^"]+)"\n\[label="(.*)"\]$', re.MULTILINE)
_EDGE = re.compile(r'^"([^"]+)":\w+:\w -> "([^"]+)":', re.MULTILINE)
#: The parts of a node, between which its lines are.
_PORT = re.compile(r"[{|]<\w+>")
_INSTRUCTION = re.compile(r"\s*(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
#: A label among the operands; its number depends on the rest of the program.
_LABEL = re.compile(r"`\(([^)]+)\)")
_PREDICATE = re.compile(r"!?(U?P[0-9T])")
#: What leaves a block for a place that the graph does not show, unless the line names all places.
_UNKNOWN = ("BRX", "JM", "UBR")
_TARGETS = re.compile(r"BRANCH_TARGETS ([^\s\"*]+)")

#: Opcodes that read or write memory -> (where, whether they write).
_MEMORY = {
    "LDG": ("global", False),
    # To shared memory, while the thread goes on.
    "LDGSTS": ("global", False),
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
    #: Such as "P0" or "!UP1"; "" for an instruction that always takes effect.
    guard: str
    #: With its modifiers, such as "LDG.E.128".
    opcode: str
    operands: tuple[str, ...]

    @cached_property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

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
        return f"{guard:>6}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Block:
    """Instructions that are entered at the first and left after the last; successors by their index in the list."""

    instructions: list[Instruction]
    successors: list[int]

    @property
    def exits(self) -> bool:
        """Whether the thread may end after the last one."""
        return self.instructions[-1].base == "EXIT"


def parse(text: str) -> dict[str, list[Block]]:
    """The basic blocks of every kernel in the graph that nvdisasm prints, by the kernel's name; first its entry.

    UnknownCode for a jump whose target is known only at run time.
    """
    clusters = {name: _NODE.findall(graph) for name, graph in _CLUSTER.findall(text)}
    code = {node: _instructions(label) for nodes in clusters.values() for node, label in nodes}
    homes = {node: name for name, nodes in clusters.items() for node, _ in nodes}
    following: dict[str, list[str]] = {node: [] for node in code}
    for node, other in _EDGE.findall(text):
        following[node].append(other)
    for node, jump in [(node, code[node][-1]) for node in code if code[node][-1].base in _UNKNOWN]:
        following[node] = [*(following[node] if jump.guard else ()), *_targets(",".join(jump.operands))]
    # A function continues after each of its calls. The graph does not show where calls go.
    returns: dict[str, list[str]] = {name: [] for name in clusters}
    for node, call in [(node, code[node][-1]) for node in code if code[node][-1].base == "CALL"]:
        target = _LABEL.search(str(call))
        if target is None or target[1] not in homes:
            raise UnknownCode(f"sass: the target of '{call}' is unknown")
        returns[homes[target[1]]] += following[node]
        following[node] = [target[1], *(following[node] if call.guard else ())]
    following |= {node: returns[homes[node]] for node in code if code[node][-1].base == "RET"}
    return {name: _blocks(name, code, following) for name in clusters if not name.startswith("$")}


def _blocks(entry: str, code: dict[str, list[Instruction]], following: dict[str, list[str]]) -> list[Block]:
    """Those that the entry of a kernel reaches. Blocks that always follow each other are one."""
    before = Counter([entry, *(other for others in following.values() for other in others)])
    reached, todo = [entry], [entry]
    while todo:
        name = todo.pop()
        while len(following[name]) == 1 and before[following[name][0]] == 1:
            # An exit under a condition ends its block.
            if code[name][-1].base == "EXIT":
                break
            (other,) = following[name]
            code[name] += code[other]
            following[name] = following[other]
        for other in following[name]:
            if other not in reached:
                reached.append(other)
                todo.append(other)
    return [Block(code[name], [reached.index(other) for other in following[name]]) for name in reached]


def _targets(text: str) -> list[str]:
    """The places that a jump names."""
    found = _TARGETS.search(text)
    return list(dict.fromkeys(found[1].split(","))) if found else []


def _instructions(label: str) -> list[Instruction]:
    """Those of a node."""
    found = []
    for line in _PORT.sub("", label).split(r"\l"):
        match = _INSTRUCTION.fullmatch(re.sub(r"\\(.)", r"\1", line))
        if match:
            guard, opcode, rest = match.groups()
            if opcode.startswith(_UNKNOWN) and not _targets(rest):
                raise UnknownCode(f"sass: the target of '{opcode} {rest}' is unknown")
            rest = rest if opcode.startswith("CALL") else _LABEL.sub("`(...)", rest)
            operands = rest.split(",") if rest else ()
            found.append(Instruction(guard or "", opcode, tuple(part.strip() for part in operands)))
    return found
