# SPDX-License-Identifier: Apache-2.0
"""CuPy: ``x.astype`` on a GPU, of NumPy's types and of those of ml_dtypes that CuPy has."""

from __future__ import annotations

from typing import Any

import cupy

from cast_conformance.arrays import array_of, codes_of, numpy_dtype

try:
    _GPU = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
except cupy.cuda.runtime.CUDARuntimeError as error:
    raise ImportError(f"CuPy {cupy.__version__} has no GPU here: {error}") from None

LINES = """import cupy, ml_dtypes, numpy as np
x = cupy.asarray(np.array([{code}], np.{uint}).view("{src}"))
print(hex(x.astype("{dst}").get().view(np.{dst_uint})[0]))"""


def version() -> str:
    return f"CuPy {cupy.__version__}, {_GPU}"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    return codes_of(cupy.asarray(array_of(codes, src)).astype(numpy_dtype(dst)).get(), dst)
