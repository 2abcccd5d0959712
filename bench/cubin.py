# SPDX-License-Identifier: Apache-2.0
"""Reads facts about kernels from the ELF sections of a cubin, without a GPU or NVIDIA tools."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_CUDA = 190
#: Bytes of every block's shared memory that belong to the system from sm_90 on. This section says that they count.
_RESERVED, _RESERVED_SECTION = 1024, ".nv.shared.reserved.0"
_NOBITS = 8
#: Attributes of .nv.info: a format byte, an attribute byte, then two bytes of value or of size.
_SIZED, _FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT = 4, 0x11, 0x12, 0x2F


@dataclass(frozen=True)
class CubinKernel:
    """The static facts of one kernel: bytes of local memory and registers per thread, bytes of machine code, bytes of
    shared memory per block, without what the system takes of it."""

    local: int
    registers: int
    code: int
    shared: int


def whole(cubin: bytes) -> list[tuple[int, ...]]:
    """The section headers. AssertionError for anything but a complete 64-bit CUDA ELF file."""
    fields = _HEADER.unpack_from(cubin)
    assert fields[0][:6] == b"\x7fELF\x02\x01"
    assert fields[2] == _CUDA
    program_headers, section_headers, parts = fields[5], fields[6], fields[9:13]
    ends = [program_headers + parts[0] * parts[1], section_headers + parts[2] * parts[3]]
    assert max(ends) <= len(cubin)
    headers = [_SECTION.unpack_from(cubin, section_headers + i * parts[2]) for i in range(parts[3])]
    ends += [header[4] + header[5] for header in headers if header[1] != _NOBITS]
    assert max(ends) == len(cubin)
    return headers


def sections(cubin: bytes) -> dict[str, bytes]:
    """The bytes of every section by name."""
    return {
        name: b"" if header[1] == _NOBITS else cubin[header[4] : header[4] + header[5]]
        for name, header in _named(cubin).items()
    }


def _named(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """The section headers by name."""
    headers = whole(cubin)
    text = headers[_HEADER.unpack_from(cubin)[13]]
    table = cubin[text[4] : text[4] + text[5]]
    return {_string(table, header[0]): header for header in headers}


def kernels(cubin: bytes) -> dict[str, CubinKernel]:
    """The static facts of every kernel, by name."""
    found, headers = sections(cubin), _named(cubin)
    # A section that has no bytes in the file still has a size.
    reserved = _RESERVED if _RESERVED_SECTION in headers else 0
    shared = {name: header[5] - reserved for name, header in headers.items() if name.startswith(".nv.shared.")}
    names = [_string(found[".strtab"], symbol[0]) for symbol in _SYMBOL.iter_unpack(found[".symtab"])]
    facts: dict[str, dict[int, int]] = {}
    for attribute, value in _attributes(found[".nv.info"]):
        if attribute in (_FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT):
            symbol, number = struct.unpack("<II", value)
            facts.setdefault(names[symbol], {})[attribute] = number
    return {
        name: CubinKernel(
            local=max(fact[_FRAME_SIZE], fact[_MIN_STACK_SIZE]),
            registers=fact[_REGCOUNT],
            code=len(found[f".text.{name}"]),
            shared=shared.get(f".nv.shared.{name}", 0),
        )
        for name, fact in facts.items()
        if f".text.{name}" in found
    }


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield attribute, info[at : at + value]
            at += value


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
