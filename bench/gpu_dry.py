# SPDX-License-Identifier: Apache-2.0
"""Finds which kernels a call would launch: it runs the call without a GPU and keeps every text that would be compiled.

It uses CuPy arrays without memory, the real `gpucast.gpu.driver.CupyDriver`, and CUDA functions that do nothing. Needs
CuPy, but no GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from bench import idle_cuda

_places = itertools.count(1)


class DryKernel(NamedTuple):
    """The input of the compiler, except the architecture."""

    name: str
    text: str


@contextlib.contextmanager
def recorded() -> Iterator[dict[DryKernel, None]]:
    """Casts in the ``with`` block do not reach the GPU. Yields the kernels that they need, in their order."""
    found: dict[DryKernel, None] = {}

    def compile_for(text: str, name: str, capability: tuple[int, int]) -> bytes:
        found[DryKernel(name, text)] = None
        return b""

    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(idle_cuda.idle(compile_for=compile_for))
        for name, replacement in (("to_device", array_like), ("to_host", _zeros), ("count", lambda: 1)):
            stack.enter_context(mock.patch.object(driver, name, replacement))
        yield found


def array(shape: tuple[int, ...], dtype: Any) -> Any:
    """A CuPy array that has no memory of its own: nothing reads it."""
    import cupy

    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    # Aligned as CUDA's addresses are, and disjoint from all other arrays.
    address = next(_places) << 40
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, 0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def array_like(x: Any) -> Any:
    return array(x.shape, x.dtype)


def _zeros(x: Any) -> np.ndarray[Any, Any]:
    return np.zeros(x.shape, x.dtype)
