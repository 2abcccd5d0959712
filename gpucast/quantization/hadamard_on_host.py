# SPDX-License-Identifier: Apache-2.0
"""Hadamard transforms of NumPy arrays: by the extension module, or by the reference where that is missing."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE, say_slow
from gpucast.quantization import block_loops, exact_hadamard
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Hadamard

NDArray = npt.NDArray[Any]


@exact()
def transform(x: NDArray, hadamard: Hadamard, *, axis: int = -1, inverse: bool = False) -> NDArray:
    """As `gpucast.quantization.exact_hadamard.transform`."""
    if MODULE is None:
        say_slow()
        return exact_hadamard.transform(x, hadamard, axis=axis, inverse=inverse)
    runs = np.require(np.moveaxis(x, axis, -1), x.dtype.newbyteorder("="), ["C", "A"])
    made = np.empty(runs.shape, np.float32)
    n = hadamard.length
    grid = BlockGrid((1, 1, x.size), (1, 1, n), (1, 1, x.size // n))
    run, how = _loop(hadamard, dtype(x.dtype), inverse)
    block_loops.each_run(run, runs, made, grid, made, how)
    return np.ascontiguousarray(np.moveaxis(made, -1, axis))


def transforming(hadamard: Hadamard, src: DType, size: int, inverse: bool = False) -> bytes:
    """The module's work for `transform` along the last axis, for arrays of so many elements."""
    return bytes(
        block_loops.Transforming(size, hadamard.length, src.code_numpy.itemsize, *_loop(hadamard, src, inverse))
    )


def _loop(hadamard: Hadamard, src: DType, inverse: bool) -> tuple[int, block_loops.Transform]:
    """The module's loop over numbers of a type, and its transform."""
    how = block_loops.Transform((ctypes.c_uint32 * 4)(*hadamard.words), hadamard.factor, inverse)
    return block_loops.find(f"hadamard_{src.name}"), how
