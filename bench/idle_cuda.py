# SPDX-License-Identifier: Apache-2.0
"""CUDA functions that do nothing, under the real `gpucast.gpu.driver.CupyDriver` and CuPy arrays over host memory.

What remains is the overhead of gpucast itself. It needs CuPy, but neither a GPU nor a driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from gpucast.compile import cubin
from gpucast.gpu import driver as launch


def nothing(*_: Any) -> int:
    return 0


def array(shape: tuple[int, ...], dtype: Any, device: int = 0) -> Any:
    """A CuPy array over host memory."""
    import cupy

    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    store = np.zeros(nbytes + 16, np.uint8)
    memory = cupy.cuda.UnownedMemory(store.ctypes.data, nbytes, store, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


@contextlib.contextmanager
def idle(
    launch_kernel: Callable[..., Any] = nothing,
    current: Callable[[], int] = int,
    stream: Callable[..., Any] | None = None,
    capturing: Callable[[int], Any] = bool,
    set_device: Callable[[int], Any] = nothing,
    allocate: Callable[[int], Any] | None = None,
    compile_for: Callable[[str, str, tuple[int, int]], bytes] = lambda text, name, capability: b"",
) -> Iterator[launch.CupyDriver]:
    """Casts use a new `CupyDriver` that calls these functions instead of CUDA's; they are as quick as possible."""
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    null = SimpleNamespace(ptr=0)
    room = array((1 << 16,), np.uint8).data
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in (
            (driver, "launchKernel", launch_kernel),
            (driver, "moduleLoadData", nothing),
            (driver, "moduleGetFunction", nothing),
            (runtime, "getDevice", current),
            (runtime, "setDevice", set_device),
            (runtime, "streamIsCapturing", capturing),
            (cupy.cuda, "get_current_stream", stream or (lambda device=-1: null)),
            (cupy.cuda, "alloc", allocate or (lambda nbytes: room)),
            (cubin, "compile_for", compile_for),
            (launch.CupyDriver, "unavailable", lambda self: None),
            (launch.CupyDriver, "_capability", staticmethod(lambda device: (9, 0))),
        ):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        ours = launch.CupyDriver()
        before = launch.use(ours)
        try:
            yield ours
        finally:
            launch.use(before)
