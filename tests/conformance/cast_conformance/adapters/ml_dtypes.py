# SPDX-License-Identifier: Apache-2.0
"""NumPy with ml_dtypes: ``x.astype``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cast_conformance.adapters import Refused
from cast_conformance.arrays import array_of, codes_of, numpy_dtype

LINES = """import numpy as np, ml_dtypes
x = np.array([{code}], np.{uint}).view("{src}")
print(hex(x.astype("{dst}").view(np.{dst_uint})[0]))"""


def version() -> str:
    return f"ml_dtypes {ml_dtypes.__version__}, NumPy {np.__version__}"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    if "FLOAT8UE5M3" in (src, dst):
        raise Refused("no dtype")  # Its codes here are those of a structured dtype, which NumPy casts as integers.
    return codes_of(array_of(codes, src).astype(numpy_dtype(dst)), dst)
