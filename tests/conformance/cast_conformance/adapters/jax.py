# SPDX-License-Identifier: Apache-2.0
"""JAX on the CPU: ``x.astype`` in a compiled function."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from cast_conformance.adapters import Refused
from cast_conformance.arrays import array_of, codes_of, numpy_dtype

LINES = """import jax, numpy as np, ml_dtypes; jax.config.update("jax_enable_x64", True)
x = np.array([{code}], np.{uint}).view("{src}")
print(hex(np.asarray(jax.jit(lambda x: x.astype("{dst}"))(x)).view(np.{dst_uint})[0]))"""


def version() -> str:
    return f"JAX {jax.__version__}, CPU"


def cast(codes: Any, src: str, dst: str, mode: str) -> Any:
    if "FLOAT6" in src + dst:
        raise Refused("XLA has no code for it, and may end the process")
    with jax.enable_x64(True):
        return codes_of(np.asarray(jax.jit(lambda x: x.astype(numpy_dtype(dst)))(array_of(codes, src))), dst)
