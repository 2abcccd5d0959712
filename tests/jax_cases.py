# SPDX-License-Identifier: Apache-2.0
"""Types and values of JAX's arrays, and JAX with its 64-bit types."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from codes import random_codes
from gpucast.core.dtypes import DTYPES, DType

NUMERIC = [row for row in DTYPES if row.family != "string"]
#: JAX has no types of 6 bits.
HELD = [row for row in NUMERIC if row.bits != 6]


@pytest.fixture
def wide() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def values(row: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return random_codes(row, shape, seed).view(row.numpy)
