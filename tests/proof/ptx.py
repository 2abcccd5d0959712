# SPDX-License-Identifier: Apache-2.0
"""Reads the PTX of one kernel, as NVRTC writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: A label, the beginning or the end of a scope, or a statement, which may hold operands in braces.
_TOKEN = re.compile(r"\s*(?:(\$\w+):|(\{)(?=\s*\.(?:reg|local|shared))|(\})|([^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)")
_STATEMENT = re.compile(r"(?:@(!?)(%?\w+)\s+)?([\w.]+)\s*(.*)", re.DOTALL)
_TABLE = re.compile(r"\.global \.align (\d+) \.b8 (\w+)\[(\d+)\] = \{([^}]*)\}")
_MEMORY = re.compile(r"\.(shared|local)\s+\.align (\d+) \.b8\s+(\w+)\[(\d+)\]")
_PARAM = re.compile(r"\.param (?:\.align (\d+) )?\.[a-z]+(\d+) (?:\.ptr \.align \d+ )?(\w+)(?:\[(\d+)\])?")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_SIZES = {"pred": 1}


@dataclass(frozen=True)
class Instruction:
    name: str
    operands: tuple[str, ...]
    #: The predicate on which it depends, and whether it must be false.
    guard: tuple[str, bool] | None
    text: str


@dataclass
class Kernel:
    """One kernel. `labels` maps names to instruction numbers, `params` gives each parameter's size in bytes and
    alignment, and `widths` gives the width of registers by their name without the number.
    """

    name: str = ""
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    params: dict[str, tuple[int, int]] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    local: dict[str, tuple[int, int]] = field(default_factory=dict)
    tables: dict[str, bytes] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)

    def width(self, register: str) -> int:
        found = self.widths.get(register)
        if found is None:
            found = self.widths[register] = self.widths[register.rstrip("0123456789")]
        return found


def read(text: str) -> Kernel:
    """Read a module that has one kernel. ValueError for text in another form."""
    text = re.sub(r"//[^\n]*", "", text)
    kernel = Kernel()
    for _, name, size, values in _TABLE.findall(text):
        kernel.tables[name] = bytes(map(int, values.split(","))).ljust(int(size), b"\0")
    for space, align, name, size in _MEMORY.findall(text):
        {"shared": kernel.shared, "local": kernel.local}[space][name] = int(size), int(align)
    head, _, body = text.partition(".entry")[2].partition("\n{")
    kernel.name = head.partition("(")[0].strip()
    for align, bits, name, count in _PARAM.findall(head):
        size = int(bits) // 8 * int(count or 1)
        kernel.params[name] = size, int(align or size)
    if not body:
        raise ValueError("proof: this PTX has no kernel")
    for statement, scope in _statements("{" + body, kernel):
        _add(kernel, statement, scope)
    return kernel


def _statements(text: str, kernel: Kernel) -> Iterator[tuple[str, dict[str, str]]]:
    """The statements, with unique names for the registers of each scope."""
    scopes: list[dict[str, str]] = []
    at, number = 0, 0
    while match := _TOKEN.match(text, at):
        at = match.end()
        label, begin, end, statement = match.groups()
        if label is not None:
            kernel.labels[label] = len(kernel.body)
        elif begin is not None:
            scopes.append({})
            number += 1
        elif end is not None:
            scopes.pop()
            if not scopes:
                return
        elif statement.startswith(".reg"):
            _, kind, names = statement.split(None, 2)
            width = _SIZES.get(kind[1:]) or int(kind[2:])
            for name in re.split(r"[,\s]+", names):
                base, counted, _ = name.partition("<")
                if not counted:
                    scopes[-1][base] = base = f"{base}#{number}"
                kernel.widths[base] = width
        elif not statement.startswith("."):
            yield statement.strip(), {name: new for scope in scopes for name, new in scope.items()}
    raise ValueError(f"proof: this PTX ends in the middle: {text[at : at + 60]!r}")


def _add(kernel: Kernel, statement: str, scope: dict[str, str]) -> None:
    match = _STATEMENT.fullmatch(statement)
    if match is None:
        raise ValueError(f"proof: no statement of PTX: {statement!r}")
    negated, guard, name, rest = match.groups()
    if scope:
        rest = re.sub(r"(?<![\w%$.])%?[A-Za-z]\w*", lambda word: scope.get(word[0], word[0]), rest)
    kernel.body.append(
        Instruction(
            name,
            tuple(_OPERAND.findall(rest)),
            None if guard is None else (scope.get(guard, guard), bool(negated)),
            " ".join(statement.split()),
        )
    )
