# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's headers cuda_fp8.h, cuda_fp6.h, cuda_fp4.h, cuda_fp16.h and cuda_bf16.h, compiled for the host: no GPU.

``CUDA_INCLUDE`` names their folder; else it is that of the packages nvidia-cuda-runtime, -crt and -cccl for CUDA 13, or
CUDA's usual place.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from itertools import product
from pathlib import Path
from typing import Any

from cast_conformance.compiled import call, library

MODES = ("", "cuda-satfinite", "ocp-overflowing", "cuda-up", "cuda-down")


def _include() -> Path:
    folders = (Path(folder, "nvidia", "cu13", "include") for folder in sys.path)
    # The packages share a folder, and each has a part.
    whole = (folder for folder in folders if all((folder / part).exists() for part in ("cuda_fp8.h", "crt", "nv")))
    return Path(os.environ.get("CUDA_INCLUDE") or next(whole, "/usr/local/cuda/include"))


_INCLUDE = _include()
_HEAD = """#include <cuda_runtime_api.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp6.h>
#include <cuda_fp4.h>
#define CAST(NAME, s, d, expression) \\
  extern "C" void NAME(const s* in, d* out, long n) { \\
    for (long i = 0; i < n; ++i) { s x = in[i]; out[i] = expression; } \\
  }
"""
_C = {
    "FLOAT": "float", "DOUBLE": "double", "FLOAT16": "__half_raw", "BFLOAT16": "__nv_bfloat16_raw",
    "INT8": "signed char", "INT16": "short", "INT32": "int", "INT64": "long long", "UINT8": "unsigned char",
    "UINT16": "unsigned short", "UINT32": "unsigned", "UINT64": "unsigned long long",
}  # fmt: skip
_FROM = {"FLOAT": "float", "DOUBLE": "double", "FLOAT16": "halfraw", "BFLOAT16": "bfloat16raw"}
_SMALL = {
    "FLOAT8E4M3FN": ("fp8", "__NV_E4M3"),
    "FLOAT8E5M2": ("fp8", "__NV_E5M2"),
    "FLOAT6E2M3": ("fp6", "__NV_E2M3"),
    "FLOAT6E3M2": ("fp6", "__NV_E3M2"),
    "FLOAT4E2M1": ("fp4", "__NV_E2M1"),
}
_WIDE = {
    "FLOAT16": {"FLOAT": "float2half_rn", "DOUBLE": "double2half", "INT32": "int2half_rn", "UINT32": "uint2half_rn",
                "INT16": "short2half_rn", "UINT16": "ushort2half_rn", "INT64": "ll2half_rn", "UINT64": "ull2half_rn"},
    "BFLOAT16": {"FLOAT": "float2bfloat16_rn", "DOUBLE": "double2bfloat16", "INT32": "int2bfloat16_rn",
                 "UINT32": "uint2bfloat16_rn", "INT16": "short2bfloat16_rn", "UINT16": "ushort2bfloat16_rn",
                 "INT64": "ll2bfloat16_rn", "UINT64": "ull2bfloat16_rn"},
}  # fmt: skip


def _text() -> str:
    lines = []
    for (src, name), (dst, (kind, type_)) in product(_FROM.items(), _SMALL.items()):
        for ending, how in (("", "__NV_SATFINITE"), ("_over", "__NV_NOSAT"))[: 2 if kind == "fp8" else 1]:
            how = f"{how}, {type_}" if kind == "fp8" else f"{type_}, cudaRoundNearest"
            lines.append(f"CAST({src}_{dst}{ending}, {_C[src]}, unsigned char, __nv_cvt_{name}_to_{kind}(x, {how}))")
    for src, (ending, way) in product(("FLOAT", "DOUBLE", "BFLOAT16"), (("up", "PosInf"), ("down", "Zero"))):
        call_ = f"__nv_cvt_{_FROM[src]}_to_e8m0(x, __NV_SATFINITE, cudaRound{way})"
        lines.append(f"CAST({src}_FLOAT8E8M0_{ending}, {_C[src]}, unsigned char, {call_})")
    for dst, functions in _WIDE.items():
        lines += [f"CAST({s}_{dst}, {_C[s]}, {_C[dst]}, {_C[dst]}(__{name}(x)))" for s, name in functions.items()]
    lines += [
        f"CAST({src}_FLOAT16, unsigned char, __half_raw, __nv_cvt_{kind}_to_halfraw(x, {type_}))"
        for src, (kind, type_) in _SMALL.items()
    ]
    lines.append("CAST(FLOAT8E8M0_BFLOAT16, unsigned char, __nv_bfloat16_raw, __nv_cvt_e8m0_to_bf16raw(x))")
    # Headers before CUDA 13.4 lack the type.
    lines.append("#if CUDART_VERSION >= 13040")
    for (src, name), (ending, how) in product(_FROM.items(), (("", "__NV_SATFINITE"), ("_over", "__NV_NOSAT"))):
        call_ = f"__nv_cvt_{name}_to_ue5m3(x, {how}, cudaRoundNearest)"
        lines.append(f"CAST({src}_FLOAT8UE5M3{ending}, {_C[src]}, unsigned char, {call_})")
    for dst, ending in (("FLOAT16", "halfraw"), ("BFLOAT16", "bf16raw")):
        lines.append(f"CAST(FLOAT8UE5M3_{dst}, unsigned char, {_C[dst]}, __nv_cvt_ue5m3_to_{ending}(x))")
    lines.append("#endif")
    return _HEAD + "\n".join(lines)


_LIBRARY = library(_text(), [*shlex.split(os.environ.get("CXX", "c++")), "-O1", "-w", f"-I{_INCLUDE}", "-x", "c++"])


def version() -> str:
    found = re.search(r"define CUDART_VERSION\s+(\d+)", (_INCLUDE / "cuda_runtime_api.h").read_text(encoding="utf-8"))
    number = int(found[1]) if found else 0
    return f"CUDA {number // 1000}.{number % 1000 // 10}, headers on the host"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    ending = {"ocp-overflowing": "_over", "cuda-up": "_up", "cuda-down": "_down"}.get(mode, "")
    return call(_LIBRARY, f"{src}_{dst}{ending}", codes, dst)
