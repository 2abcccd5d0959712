# SPDX-License-Identifier: Apache-2.0
"""Casts of a C compiler (``CC``, else cc): ``(_Float16)x`` and, where it converts them, ``(__bf16)x``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from functools import lru_cache
from itertools import product
from typing import Any

from cast_conformance.adapters import Refused
from cast_conformance.compiled import call, library

_TYPES = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "_Float16", "BFLOAT16": "__bf16", "BOOL": "_Bool",
    "INT8": "int8_t", "INT16": "int16_t", "INT32": "int32_t", "INT64": "int64_t",
    "UINT8": "uint8_t", "UINT16": "uint16_t", "UINT32": "uint32_t", "UINT64": "uint64_t",
}  # fmt: skip
_HEAD = """#include <stdint.h>
#define CAST(S, s, D, d) void S##_##D(const s* x, d* y, long n) { for (long i = 0; i < n; ++i) y[i] = (d)x[i]; }
"""


class Compiler:
    """The casts of a compiler. Each with ``__bf16`` is compiled alone: linkers may lack the functions of some."""

    def __init__(self, command: str) -> None:
        self.command = shlex.split(command)
        if shutil.which(self.command[0]) is None:
            raise ImportError(f"there is no compiler {self.command[0]}")
        self._library = lru_cache(self._built)

    def _built(self, pairs: tuple[tuple[str, str], ...]) -> Any:
        casts = [f"CAST({src}, {_TYPES[src]}, {dst}, {_TYPES[dst]})" for src, dst in pairs]
        return library(_HEAD + "\n".join(casts), [*self.command, "-O2", "-x", "c"])

    def version(self) -> str:
        command = [*self.command, "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return " ".join([said.splitlines()[0], *self.command[1:]])

    def cast(self, codes: Any, src: str, dst: str, mode: str) -> Any:
        if src not in _TYPES or dst not in _TYPES:
            raise Refused("no type")
        alone = "BFLOAT16" in (src, dst)
        names = [name for name in _TYPES if name != "BFLOAT16"]
        pairs = ((src, dst),) if alone else tuple(product(names, names))
        return call(self._library(pairs), f"{src}_{dst}", codes, dst)


_CC = Compiler(os.environ.get("CC", "cc"))
version, cast = _CC.version, _CC.cast
