# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for libraries with streams of their own, over the memory of a `DelayedDriver`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from delayed_driver import DelayedDriver, Memory
from foreign_arrays import Interface
from gpucast import PackedArray
from gpucast.casting import engines
from gpucast.core.dtypes import dtype
from gpucast.libraries import dlpack

_CUDA = 2
#: The current streams of CuPy and torch, that of a library with `__cuda_array_interface__`, and of one with DLPack.
CUPY, TORCH, INTERFACE, LENDER = 0, 777, 555, 900


class Lender:
    """An array of a library like JAX, which gives its memory to others as soon as it is gone."""

    def __init__(self, driver: DelayedDriver, memory: Memory, x: np.ndarray) -> None:
        self.driver, self.codes = driver, engines.HOST.view(memory.address, x.shape, None, dtype(x.dtype), memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, 0

    def __dlpack__(self, *, stream: int, max_version: Any = None) -> Any:
        self.driver.wait({1: 0}.get(stream, stream), LENDER)
        capsule = self.codes.__dlpack__(max_version=(1, 0))
        managed: Any = dlpack._Versioned.from_address(dlpack._pointer(capsule, b"dltensor_versioned"))
        managed.tensor.device_type = _CUDA
        return capsule


class Streams:
    """The libraries of a test, and the work that they give to their streams."""

    def __init__(self, driver: DelayedDriver) -> None:
        self.driver = driver

    def new(self, library: str, x: np.ndarray) -> Any:
        """An array of a library, which its stream will have written."""
        stream = {"cupy": CUPY, "torch": TORCH, "interface": INTERFACE, "lender": LENDER}[library]
        memory = Memory(self.driver, x.nbytes, stream)
        address = memory.address
        self._write(address, x, stream)
        if library == "cupy":
            return memory.array(x.shape, x.dtype)
        if library == "interface":
            lent = Interface(memory.bytes.view(x.dtype).reshape(x.shape), stream=INTERFACE)
            lent.memory = memory  # type: ignore[attr-defined]
            return lent
        if library == "lender":
            return Lender(self.driver, memory, x)
        import torch

        return torch.from_numpy(engines.HOST.view(address, x.shape, None, dtype(x.dtype), memory))

    def write(self, x: Any, values: np.ndarray, stream: int) -> None:
        """Give a stream work that writes an array of CuPy or torch."""
        self._write(x.data_ptr() if hasattr(x, "data_ptr") else x.data.ptr, values, stream)

    def _write(self, address: int, values: np.ndarray, stream: int) -> None:
        held = np.ascontiguousarray(values)
        self.driver.kept.append(held)
        self.driver.give(lambda: ctypes.memmove(address, held.ctypes.data, held.nbytes), stream)

    def read(self, y: Any, library: str | None = None) -> Callable[[], bytes]:
        """Work that reads a result on the stream of its library, and a function that tells what it has read."""
        stream = TORCH if getattr(y, "library", library) == "torch" else CUPY
        if isinstance(y, PackedArray):
            y = y.data
        if isinstance(y, np.ndarray):
            return y.tobytes
        if hasattr(y, "data_ptr"):
            stream, address, nbytes = TORCH, y.data_ptr(), y.nbytes
        elif isinstance(y, Interface):
            stream, address, nbytes = INTERFACE, y.memory.address, y.x.nbytes
        else:
            address, nbytes = y.data.ptr, y.nbytes
        found: list[bytes] = []
        self.driver.give(lambda: found.append(ctypes.string_at(address, nbytes)), stream)
        self.driver.kept.append(y)
        return lambda: found[0]
