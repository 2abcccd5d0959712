# SPDX-License-Identifier: Apache-2.0
"""Test data for files: arrays of every type, what each format can hold, and disks that are full."""

from __future__ import annotations

import contextlib
import math
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from codes import random_codes
from gpucast import files
from gpucast.core.dtypes import DTYPES, DType

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (2, 0, 3), (4, 2, 2)]
TEXTS = ["", "1.5", " -INF ", "é", "日本", "\U0001f600", "a\0b"]


def holds(suffix: str, dtype: DType) -> bool:
    if suffix == ".npy":
        return not dtype.packed
    if suffix == ".pb":
        return dtype.number is not None
    return not (suffix == ".safetensors" and dtype.family == "string")


HELD = [(suffix, dtype) for suffix in files.SUFFIXES for dtype in DTYPES if holds(suffix, dtype)]
REFUSED = [(suffix, dtype) for suffix in files.SUFFIXES for dtype in DTYPES if not holds(suffix, dtype)]


def ids(case: Any) -> str:
    return case.name if isinstance(case, DType) else str(case)


def sample(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any codes of the type, with NaN and infinity if the array is large enough; texts for STRING."""
    size = math.prod(shape)
    if dtype.family == "string":
        array = np.empty(size, dtype=object)
        array[:] = [TEXTS[i % len(TEXTS)] for i in range(size)]
        return array.reshape(shape)
    codes = random_codes(dtype, size, seed)
    top = 1 if dtype.family == "bool" else dtype.code_mask
    edges = [
        top,
        0,
        dtype.sign_code,
        *([dtype.nan_code] if dtype.has_nan else []),
        *([dtype.inf_code] if dtype.has_inf else []),
    ]
    codes[: len(edges)] = [edge & top for edge in edges[:size]]
    return codes.view(dtype.numpy).reshape(shape)


@contextlib.contextmanager
def full_disk(after: int) -> Iterator[None]:
    """No file can grow beyond `after` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def leftovers(folder: Path, *known: str) -> list[str]:
    """Files in the folder that nobody asked for."""
    return sorted(path.name for path in folder.iterdir() if path.name not in known)
