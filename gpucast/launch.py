# SPDX-License-Identifier: Apache-2.0
"""From a kernel's text to a call on a GPU. The only module that gives CUDA work, all of it through one object.

`driver()` gives that object. Tests put another in its place, one that works on host memory, and so run all above it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from gpucast import compiler
from gpucast import driver as nvidia
from gpucast.errors import DeviceUnavailable
from gpucast.rule import Rule
from gpucast.source import KernelSource, Shape, kernel_source
from gpucast.strides import Dims


class Kernel(Protocol):
    """A kernel loaded on one device; launches on a stream and returns at once."""

    def __call__(self, src: int, src_bit: int, dst: int, n: int, dims: Dims | None, stream: int) -> None: ...


class Driver(Protocol):
    """What casts need of CUDA. Addresses and streams are plain integers."""

    def unavailable(self) -> tuple[str, str] | None:
        """Why no cast can run, and what mends it; None when it can."""

    def count(self) -> int:
        """The number of devices."""

    def current(self) -> int:
        """The index of the current device."""

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a device the current one for the length of a ``with`` block."""

    def stream(self) -> int:
        """The current stream of the current device."""

    def capturing(self, stream: int) -> bool:
        """Whether a CUDA graph is being captured from the stream."""

    def load(self, source: KernelSource) -> Kernel:
        """Compile (or find in the cache) and load on the current device."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A C-contiguous array on the current device."""

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        """A NumPy copy of a device array of plain bytes, C-contiguous; waits for the current stream."""

    def to_device(self, x: Any) -> Any:
        """A copy on the current device of a C-contiguous NumPy or device array of plain bytes."""


class CupyDriver:
    """CUDA through CuPy."""

    def __init__(self) -> None:
        self._parameters = threading.local()

    def unavailable(self) -> tuple[str, str] | None:
        found = nvidia.find()
        if found is None:
            return "there is no NVIDIA driver", "run on the host (no device=, no --device)"
        if found.problem:
            return found.problem, "run nvidia-smi"
        try:
            import cupy
        except ImportError:
            return "CuPy is not installed", f"run pip install 'gpucast[{nvidia.extra(found.cuda)}]'"
        if not cupy.cuda.is_available():
            return "CuPy finds no usable device", "run gpucast info"
        try:
            for capability in found.capabilities:
                compiler.architecture(capability)
        except (DeviceUnavailable, ValueError) as error:
            return str(error), "run gpucast info"
        return None

    def count(self) -> int:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())

    def current(self) -> int:
        from cupy_backends.cuda.api import runtime

        return int(runtime.getDevice())

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if device == self.current() else self._switched(device)

    @contextlib.contextmanager
    def _switched(self, device: int) -> Iterator[None]:
        import cupy

        with cupy.cuda.Device(device):
            yield

    def stream(self) -> int:
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)

    def capturing(self, stream: int) -> bool:
        from cupy_backends.cuda.api import runtime

        return bool(runtime.streamIsCapturing(stream))

    def load(self, source: KernelSource) -> Kernel:
        from cupy_backends.cuda.api import driver

        self._bind()
        capability = self._capability(self.current())
        image = compiler.compile_for(source.text, source.name, capability)
        # Kept for the life of the process: a plan may be used at any time, also while Python shuts down.
        function = driver.moduleGetFunction(driver.moduleLoadData(image), source.name)

        def launch(src: int, src_bit: int, dst: int, n: int, dims: Dims | None, stream: int) -> None:
            parameters = self._pack(src, src_bit, dst, n, dims)
            blocks = source.blocks(n)
            if blocks:
                driver.launchKernel(function, blocks, 1, 1, source.threads, 1, 1, 0, stream, parameters, 0)

        return launch

    @staticmethod
    def _bind() -> None:
        """Make the device's context current in this thread: the driver needs it, and CuPy may not have had to."""
        from cupy_backends.cuda.api import runtime

        runtime.setDevice(runtime.getDevice())

    def _pack(self, src: int, src_bit: int, dst: int, n: int, dims: Dims | None) -> int:
        """The address of the list of argument addresses; CUDA copies the arguments when it launches."""
        try:
            arguments, addresses = self._parameters.held
        except AttributeError:
            self._bind()
            arguments = (ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint64(), ctypes.c_int64())
            addresses = (ctypes.c_void_p * 5)(*map(ctypes.addressof, arguments), None)
            self._parameters.held = arguments, addresses
        for argument, value in zip(arguments, (src, src_bit, dst, n), strict=True):
            argument.value = value
        if dims is not None:
            # Held as long as the launch may read it.
            self._parameters.dims = ctypes.create_string_buffer(dims.to_bytes())
            addresses[4] = ctypes.addressof(self._parameters.dims)
        return ctypes.addressof(addresses)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        import cupy

        return cupy.empty(shape, dtype)

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        return np.asarray(x.get())

    def to_device(self, x: Any) -> Any:
        import cupy

        return cupy.array(x, order="C")

    @staticmethod
    def _capability(device: int) -> tuple[int, int]:
        import cupy

        text = cupy.cuda.Device(device).compute_capability
        return int(text[:-1]), int(text[-1])


_driver: Driver = CupyDriver()
_plans: dict[tuple[Rule, Shape, bool, int], Kernel] = {}


_available = False


def unavailable() -> tuple[str, str] | None:
    """Why no cast can run on a GPU, and what mends it; None when it can. A yes is remembered, a no asked again."""
    global _available  # noqa: PLW0603 (asking takes longer than a small cast)
    problem = None if _available else _driver.unavailable()
    _available = problem is None
    return problem


def driver() -> Driver:
    return _driver


def use(other: Driver) -> Driver:
    """Put another driver in place, without any of the plans made so far; the one that it replaces."""
    global _driver, _available  # noqa: PLW0603 (one object is what this module is for)
    before, _driver = _driver, other
    _available = False
    _plans.clear()
    return before


def plan(rule: Rule, shape: Shape, unpacked: bool, device: int) -> Kernel:
    """The kernel for a cast on the current device, whose index is `device`.

    RuntimeError for one that is not loaded yet while a CUDA graph is captured: loading would break the capture.
    """
    key = (rule, shape, unpacked, device)
    kernel = _plans.get(key)
    if kernel is None:
        if _driver.capturing(_driver.stream()):
            raise RuntimeError(
                f"cast: {rule.src.name} to {rule.dst.name} is not loaded yet, and loading is not possible while a CUDA "
                "graph is captured; cast once before the capture (gpucast.warmup compiles ahead of time)"
            )
        # Two threads may both load: the second finds the cubin in the cache, and either kernel serves.
        kernel = _plans[key] = _driver.load(kernel_source(rule, shape, unpacked=unpacked))
    return kernel
