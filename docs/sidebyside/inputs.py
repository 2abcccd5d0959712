# SPDX-License-Identifier: Apache-2.0
"""What is cast: every code of the types of 16 bits or fewer, hard values of the wider ones."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gpucast.core.dtypes import DTYPES, DType
from sidebyside.systems import Array

#: Of the midpoints of 16-bit formats every sixteenth is tried, and so are those of FLOAT where it is the narrower one.
_STRIDE = 16


@lru_cache
def sweep(src: DType) -> Array:
    """A flat array of the source type."""
    if src.bits <= 16:
        count = 2 if src.family == "bool" else 1 << src.bits
        return np.arange(count, dtype=src.code_numpy).view(src.numpy)
    return _integers(src) if src.family == "int" else _floats(src)


def _integers(src: DType) -> Array:
    near_powers = [s * ((1 << k) + d) for k in range(src.bits) for d in (-2, -1, 0, 1, 2) for s in (1, -1)]
    # Ties of every narrower significand, at the top of the range and just beside it.
    ties = [
        s * (((1 << m) + j) * (1 << shift) + (1 << (shift - 1)) + d)
        for m in (1, 2, 3, 7, 10, 23, 52)
        for shift in range(1, src.bits - m)
        for j in (0, 1)
        for d in (-1, 0, 1)
        for s in (1, -1)
    ]
    wanted = {value for value in [*range(-300, 300), *near_powers, *ties] if src.min <= value <= src.max}
    return np.array(sorted(wanted), dtype=src.numpy)


def _floats(src: DType) -> Array:
    points: list[Array] = [np.array([0.0, np.inf, 3e9, 5e9, 1e30]), np.ldexp(1.0, np.arange(-1074, 1024))]
    with np.errstate(over="ignore"):
        for row in DTYPES:
            if row.family == "float" and row.bits < src.bits:
                points.append(_midpoints(row))
            if row.family == "int":
                points.append(np.array([row.max + d for d in (0, 0.5, 1)], dtype=np.float64))
        points.append(np.arange(0, 40, 0.25))
        magnitudes = np.concatenate(points).astype(src.numpy)
    beside = [np.nextafter(magnitudes, src.numpy.type(end)) for end in (0, np.inf)]
    finite = np.unique(np.concatenate([magnitudes, *beside]).view(src.code_numpy))
    quiet = src.nan_code
    nans = np.array([quiet, quiet | 1, quiet | 1 << (src.mantissa_bits - 2), src.inf_code | 1], dtype=src.code_numpy)
    codes = np.concatenate([finite, nans])
    return np.concatenate([codes, codes | src.code_numpy.type(src.sign_code)]).view(src.numpy)


def _midpoints(row: DType) -> Array:
    """Values of a row and the midpoints between them, on beyond the largest."""
    if row.bits == 32:
        mantissas = np.array([0, 1, 2, (1 << 22) + 1, (1 << 23) - 1], dtype=np.uint32)
        codes = (np.arange(256, dtype=np.uint32)[:, None] << np.uint32(23) | mantissas).reshape(-1)
        values = np.unique(codes[codes < row.inf_code]).view(np.float32).astype(np.float64)
        middle = values + np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 25, -150))
        return np.concatenate([values, middle])
    step = _STRIDE if row.bits == 16 else 1
    codes = range(0, row.max_code, step)
    values = np.array([[row.value(code), row.value(code + 1)] for code in codes], dtype=np.float64)
    top = float(row.max) + (float(row.max) - float(row.value(row.max_code - 1))) * np.array([0, 0.5, 1])
    return np.concatenate([values[:, 0], values.mean(axis=1), top])
