# SPDX-License-Identifier: Apache-2.0
"""CUDA functions that do nothing, under the real `gpucast.kernel.driver.CupyDriver` and CuPy arrays over host memory.

What remains is the overhead of gpucast itself. It needs CuPy, but neither a GPU nor a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from gpucast.kernel import compiler, nvidia
from gpucast.kernel import driver as launch


def nothing(*_: Any) -> int:
    return 0


class Config(ctypes.Structure):
    """The part of CUlaunchConfig that launches set."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
    )


_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
#: ``launch(function, blocks, threads, stream, arguments)``, which returns a CUresult.
Launch = Callable[[int, int, int, int, int], int]


def _functions(launch: Launch, current: Callable[[], int], load: Callable[[int], int]) -> dict[str, Any]:
    """Functions of C in place of those of the driver, by their names."""
    if launch is nothing and current is int and load is nothing:
        # It takes nothing, does nothing, and returns 0.
        idle = ctypes.CDLL(None).fegetround
        return {"cuLaunchKernelEx": idle, "cuCtxGetDevice": idle, "cuFuncLoad": idle}

    def called(config: Any, function: int | None, arguments: int, extra: Any) -> int:
        one = config.contents
        return launch(function or 0, one.grid[0], one.block[0], one.stream or 0, arguments)

    def asked(device: Any) -> int:
        device[0] = current()
        return 0

    return {"cuLaunchKernelEx": _LAUNCH(called), "cuCtxGetDevice": _CURRENT(asked), "cuFuncLoad": _LOAD(load)}


def array(shape: tuple[int, ...], dtype: Any, device: int = 0) -> Any:
    """A CuPy array over host memory, which begins at a multiple of 256 bytes as CUDA's does."""
    import cupy

    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    store = np.zeros(nbytes + 256, np.uint8)
    memory = cupy.cuda.UnownedMemory(-(-store.ctypes.data // 256) * 256, nbytes, store, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def fresh(nbytes: int) -> Any:
    """Memory of its own, for `idle(allocate=)`: then no two arrays of a call share theirs."""
    return array((nbytes,), np.uint8).data


@contextlib.contextmanager
def idle(
    launch_kernel: Launch = nothing,
    current: Callable[[], int] = int,
    stream: Callable[..., Any] | None = None,
    capturing: Callable[[int], Any] = bool,
    set_device: Callable[[int], Any] = nothing,
    allocate: Callable[[int], Any] | None = None,
    compile_for: Callable[[str, str, tuple[int, int]], bytes] = lambda text, name, capability: b"",
    load: Callable[[int], Any] = nothing,
    module_function: Callable[[int, str], int] = nothing,
) -> Iterator[launch.CupyDriver]:
    """Casts use a new `CupyDriver` that calls these functions instead of CUDA's; they are as quick as possible.

    `launch_kernel` gets the function, blocks, threads, the stream and the address of the arguments; it returns a
    CUresult.
    """
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    def by_cupy(function: int, *grid: int) -> None:
        status = launch_kernel(function, grid[0], grid[3], grid[7], grid[8])
        if status:
            raise driver.CUDADriverError(status)

    functions = _functions(launch_kernel, current, load)
    null = SimpleNamespace(ptr=0)
    room = array((1 << 16,), np.uint8).data
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (nvidia, "function", lambda name: ctypes.cast(functions[name], ctypes.c_void_p).value),
            (driver, "launchKernel", nothing if launch_kernel is nothing else by_cupy),
            (driver, "CUDADriverError", lambda status: RuntimeError(f"CUresult {status}")),
            (driver, "moduleLoadData", nothing),
            (driver, "moduleGetFunction", module_function),
            (runtime, "getDevice", current),
            (runtime, "setDevice", set_device),
            (runtime, "streamIsCapturing", capturing),
            (cupy.cuda, "get_current_stream", stream or (lambda device=-1: null)),
            (cupy.cuda, "alloc", allocate or (lambda nbytes: room)),
            (compiler, "compile_for", compile_for),
            (launch.CupyDriver, "unavailable", lambda self: None),
            (launch.CupyDriver, "to_device", lambda self, x: array(x.shape, x.dtype)),
            (launch.CupyDriver, "_blocks_at_a_time", staticmethod(lambda function, threads, device: 528)),
            (launch.CupyDriver, "_capability", staticmethod(lambda device: (9, 0))),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        ours = launch.CupyDriver()
        before = launch.use(ours)
        try:
            yield ours
        finally:
            launch.use(before)
