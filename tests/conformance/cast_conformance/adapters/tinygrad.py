# SPDX-License-Identifier: Apache-2.0
"""tinygrad on the CPU, by clang (the variable ``CC``, else clang): ``x.cast``."""

from __future__ import annotations

import os
from importlib.metadata import version as installed
from typing import Any

os.environ.setdefault("DEV", "CPU")

from tinygrad import Tensor, dtypes

from cast_conformance.numbers import codes_dtype
from cast_conformance.reader import manifest

NAMES = {"FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool"}
NAMES |= {name: name.lower() for name in ("FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64")}
NAMES |= {name: name.lower() for name in ("UINT8", "UINT16", "UINT32", "UINT64")}
NAMES |= {"FLOAT8E4M3FN": "fp8e4m3", "FLOAT8E5M2": "fp8e5m2"}
NAMES |= {"FLOAT8E4M3FNUZ": "fp8e4m3fnuz", "FLOAT8E5M2FNUZ": "fp8e5m2fnuz"}
LINES = """import numpy as np; from tinygrad import Tensor, dtypes
x = Tensor(np.array([{code}], np.{uint})).bitcast(dtypes.{src})
print(hex(x.cast(dtypes.{dst}).bitcast(dtypes.{dst_uint}).numpy()[0]))"""


def version() -> str:
    return f"tinygrad {installed('tinygrad')}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    given, wanted = getattr(dtypes, NAMES[src]), getattr(dtypes, NAMES[dst])
    x = Tensor(codes.view(bool)) if src == "BOOL" else Tensor(codes).bitcast(given)
    y = x.cast(wanted)
    result = codes_dtype(manifest()["types"][dst])
    return y.numpy().view(result) if dst == "BOOL" else y.bitcast(getattr(dtypes, result.name)).numpy()
