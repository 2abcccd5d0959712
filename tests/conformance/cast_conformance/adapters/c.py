# SPDX-License-Identifier: Apache-2.0
"""Casts of a C compiler (``CC``, else cc): ``(_Float16)x`` and, where it converts them, ``(__bf16)x``."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

from cast_conformance.compiled import call, library

_TYPES = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "_Float16", "BFLOAT16": "__bf16", "BOOL": "_Bool",
    "INT8": "int8_t", "INT16": "int16_t", "INT32": "int32_t", "INT64": "int64_t",
    "UINT8": "uint8_t", "UINT16": "uint16_t", "UINT32": "uint32_t", "UINT64": "uint64_t",
}  # fmt: skip
_HEAD = """#include <stdint.h>
#define CAST(S, s, D, d) void S##_##D(const s* x, d* y, long n) { for (long i = 0; i < n; ++i) y[i] = (d)x[i]; }
"""
_CC = shlex.split(os.environ.get("CC", "cc"))


def _loaded() -> Any:
    for without in ((), ("BFLOAT16",)):
        types = {name: text for name, text in _TYPES.items() if name not in without}
        casts = [f"CAST({s}, {types[s]}, {d}, {types[d]})" for s in types for d in types]
        try:
            return library(_HEAD + "\n".join(casts), [*_CC, "-O2", "-x", "c"])
        except ImportError as error:
            failed = error
    raise failed


_LIBRARY = _loaded()


def version() -> str:
    return subprocess.run([*_CC, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    return call(_LIBRARY, f"{src}_{dst}", codes, dst)
