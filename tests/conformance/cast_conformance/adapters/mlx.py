# SPDX-License-Identifier: Apache-2.0
"""MLX on the CPU: ``x.astype``, and ``to_fp8`` and ``from_fp8`` for FLOAT8E4M3FN."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

import mlx.core as mx
import numpy as np

from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

NAMES = {"FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool_"}
NAMES |= {name: name.lower() for name in ("FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64")}
NAMES |= {name: name.lower() for name in ("UINT8", "UINT16", "UINT32", "UINT64")}
LINES = """import mlx.core as mx, numpy as np
x = mx.array(np.array([{code}], np.{uint})).view(mx.{src})
print(hex(np.array(x.astype(mx.{dst}).view(mx.{dst_uint}))[0]))"""


def version() -> str:
    return f"MLX {installed('mlx')}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    with mx.stream(mx.cpu):
        x = mx.array(codes)
        x = mx.from_fp8(x, mx.float32) if src == "FLOAT8E4M3FN" else x.view(getattr(mx, NAMES[src]))
        y = mx.to_fp8(x) if dst == "FLOAT8E4M3FN" else x.astype(getattr(mx, NAMES[dst]))
        wanted = codes_dtype(manifest()["types"][dst])
        return np.array(y.view(getattr(mx, wanted.name)))
