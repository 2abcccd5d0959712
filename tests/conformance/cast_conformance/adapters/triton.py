# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter, which needs no GPU: ``x.to`` in a kernel, on tensors of PyTorch."""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

from cast_conformance.adapters import Refused, load
from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

TYPES = {
    "FLOAT": tl.float32, "DOUBLE": tl.float64, "FLOAT16": tl.float16, "BFLOAT16": tl.bfloat16, "BOOL": tl.int1,
    "FLOAT8E4M3FN": tl.float8e4nv, "FLOAT8E5M2": tl.float8e5, "FLOAT8E4M3FNUZ": tl.float8e4b8,
    "FLOAT8E5M2FNUZ": tl.float8e5b16, "INT8": tl.int8, "INT16": tl.int16, "INT32": tl.int32, "INT64": tl.int64,
    "UINT8": tl.uint8, "UINT16": tl.uint16, "UINT32": tl.uint32, "UINT64": tl.uint64,
}  # fmt: skip
TORCH = load("torch").NAMES


@triton.jit  # type: ignore[untyped-decorator]
def kernel(x: Any, y: Any, n: Any, BLOCK: tl.constexpr) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(y.dtype.element_ty), mask=i < n)


def version() -> str:
    return f"Triton {triton.__version__}, interpreter"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    if src not in TYPES or dst not in TYPES:
        raise Refused("no dtype")
    x = torch.from_numpy(codes.copy()).view(getattr(torch, TORCH[src]))
    y = torch.empty(codes.size, dtype=getattr(torch, TORCH[dst]))
    kernel[(triton.cdiv(codes.size, 65536),)](x, y, codes.size, BLOCK=65536)
    return y.view(getattr(torch, codes_dtype(manifest()["types"][dst]).name)).numpy()
