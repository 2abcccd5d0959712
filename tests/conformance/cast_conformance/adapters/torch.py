# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the CPU: ``t.to``."""

from __future__ import annotations

from typing import Any

import torch

from cast_conformance.adapters import Refused

NAMES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2", "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT16": "float16", "BFLOAT16": "bfloat16", "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32",
    "INT64": "int64", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip
LINES = """import torch
t = torch.tensor([{code}], dtype=torch.{uint}).view(torch.{src})
print(hex(t.to(torch.{dst}).view(torch.{dst_uint}).item()))"""


def version() -> str:
    return f"PyTorch {torch.__version__.partition('+')[0]}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    if src not in NAMES or dst not in NAMES:
        raise Refused(f"no dtype, or no casts, for {src if src not in NAMES else dst}")
    t = torch.from_numpy(codes.copy()).view(getattr(torch, NAMES[src])).to(getattr(torch, NAMES[dst]))
    return t.view(getattr(torch, f"uint{8 * t.element_size()}")).numpy()
