# SPDX-License-Identifier: Apache-2.0
"""Read a table with Python alone.

A ``.cct`` file is little-endian: ``CCT1``, the number of arrays as uint32, eight zero bytes; for each array 32 bytes:
its name (20, padded with zeros), the bytes of an element, the number of elements and the place of the first one (all
uint32); then the arrays. A table without ``input`` is complete: element i is the result for code i. A table without the
column of a convention has the same results there as in ``onnx``.
"""

from __future__ import annotations

import json
import os
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

#: Where the tables are: in the package, or where ``CAST_CONFORMANCE_TABLES`` says.
TABLES = Path(os.environ.get("CAST_CONFORMANCE_TABLES", Path(__file__).with_name("tables")))
MAGIC = b"CCT1"
HEAD, ENTRY = struct.Struct("<4sI8x"), struct.Struct("<20s3I")
_ELEMENTS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


@lru_cache
def manifest() -> dict[str, Any]:
    """The types, the conventions, and a checksum for every table."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("manifest.json").read_text(encoding="utf-8"))
    return found


def as_text(content: Any, depth: int) -> str:
    """JSON with a line for each item of the outer `depth` levels: short, and readable in a diff."""
    if not depth or not isinstance(content, dict):
        return json.dumps(content)
    return (
        "{\n" + ",\n".join(f"{json.dumps(key)}: {as_text(value, depth - 1)}" for key, value in content.items()) + "\n}"
    )


def read(path: str | Path) -> dict[str, memoryview[int]]:
    """The arrays of a table by name, each a memoryview of unsigned codes."""
    data = memoryview(Path(path).read_bytes())
    magic, count = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"{path} is not a table: it begins with {magic!r}, not {MAGIC!r}")
    found = {}
    for i in range(count):
        name, size, length, place = ENTRY.unpack_from(data, HEAD.size + i * ENTRY.size)
        found[name.rstrip(b"\0").decode()] = data[place : place + size * length].cast(_ELEMENTS[size])
    return found
