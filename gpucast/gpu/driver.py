# SPDX-License-Identifier: Apache-2.0
"""From a kernel's text to a call on a GPU. The only module that gives CUDA work, all of it through one object.

`driver()` gives that object. Tests put another in its place, one that works on host memory, and so run all above it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import CFUNCTYPE, addressof, c_int, c_int64, c_uint32, c_uint64, c_void_p, create_string_buffer
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from gpucast import gpu
from gpucast.codegen.batch_kernel import ARGUMENT_BYTES, LARGE_ARGUMENTS, BatchSource
from gpucast.codegen.cast_kernel import KernelSource, Shape
from gpucast.codegen.fused_kernel import FusedOps
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.compile import compiler, nvidia
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.rule import CastRule
from gpucast.host.extension import MODULE

#: CUDA_ERROR_INVALID_CONTEXT.
_NO_CONTEXT = 201
#: cudaErrorStreamCaptureImplicit.
_CAPTURE_IMPLICIT = 906


class Argument(Protocol):
    """The last argument of a kernel that has a fifth one, such as a `gpucast.codegen.strides.Dims`."""

    def to_bytes(self) -> bytes: ...


class Kernel(Protocol):
    """A kernel loaded on one device, which is the current one whenever it is called.

    Launches for n > 0 elements on the device's current stream and returns at once.
    """

    def __call__(self, src: int, dst: int, n: int, more: Argument | None) -> None: ...


class ManyKernel(Protocol):
    """A kernel for many arrays, loaded on one device, which is the current one whenever it is called.

    Launches so many blocks, which find their work in a record of `BatchSource.table`; copies it and returns at once.
    """

    def __call__(self, blocks: int, table: np.ndarray[Any, Any]) -> None: ...


class Driver(Protocol):
    """The parts of CUDA that casts need. Addresses and streams are plain integers."""

    def unavailable(self) -> tuple[str, str] | None:
        """The reason why no cast can run, and the remedy, or None."""

    def count(self) -> int:
        """The number of devices."""

    def current(self) -> int:
        """The index of the current device."""

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a device the current one for the length of a ``with`` block."""

    def stream(self) -> int:
        """The current stream of the current device."""

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured from the current stream."""

    def load(self, source: KernelSource) -> Kernel:
        """Compile (or find in the cache) and load on the current device."""

    def load_many(self, source: BatchSource) -> ManyKernel:
        """The same for a kernel of many arrays."""

    @property
    def argument_bytes(self) -> int:
        """The most bytes of arguments that a kernel takes."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        """An array without gaps on the current device, C-contiguous where no strides are given.

        Any dtype will do, also those that CuPy does not know.
        """

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        """A NumPy copy of a device array of plain bytes, C-contiguous; waits for the current stream."""

    def to_device(self, x: Any) -> Any:
        """A copy on the current device of a C-contiguous NumPy or device array of plain bytes."""

    # For arrays of other libraries:

    def using(self, stream: int, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a device and a stream of it the current ones for the length of a ``with`` block."""

    def follow(self, stream: int, device: int) -> None:
        """Let the current stream wait for all work given so far to another stream of this device."""

    def synchronize(self) -> None:
        """Wait for the current stream."""

    def device_of(self, address: int) -> int:
        """The index of the device that holds an address."""


@dataclass(frozen=True)
class _Foreign:
    """A stream of another library, in the words of the CUDA stream protocol. CuPy never destroys it."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _failed(status: int, is_repeated: bool) -> None:
    """After a launch by the extension module: bind the device's context, which CuPy may not have had to do in this
    thread, or raise CuPy's error."""
    from cupy_backends.cuda.api import driver, runtime

    if status != _NO_CONTEXT or is_repeated:
        raise driver.CUDADriverError(status)
    runtime.setDevice(runtime.getDevice())


class CupyDriver:
    """CUDA through CuPy."""

    def unavailable(self) -> tuple[str, str] | None:
        found = nvidia.find()
        if found is None:
            return "there is no NVIDIA driver", "install it, or use the CPU (device='cpu')"
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

    @cached_property
    def current(self) -> Callable[[], int]:
        from cupy_backends.cuda.api import runtime

        # CuPy's function itself, because it is asked in every cast.
        return runtime.getDevice  # type: ignore[no-any-return]

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

    @cached_property
    def capturing(self) -> Callable[[], bool]:
        from cupy.cuda import get_current_stream
        from cupy_backends.cuda.api import runtime

        def capturing() -> bool:
            try:
                return bool(runtime.streamIsCapturing(get_current_stream().ptr))
            except runtime.CUDARuntimeError as error:
                if error.status != _CAPTURE_IMPLICIT:
                    raise
                raise RuntimeError(
                    "gpucast: CUDA's default stream cannot be used while a blocking stream is captured; use another "
                    "stream (cupy.cuda.Stream(non_blocking=True)), or capture one of that kind"
                ) from error

        return capturing

    def load(self, source: KernelSource) -> Kernel:
        kernel: Kernel | None = self._kernel(source, source.block, source.ahead)
        if kernel is not None:
            return kernel
        launched, blocks = self._launcher(source), source.blocks

        def launch(src: int, dst: int, n: int, more: Argument | None) -> None:
            last = [] if more is None else [create_string_buffer(more.to_bytes())]
            arguments = [c_uint64(src), c_uint32(), c_uint64(dst), c_int64(n), *last]
            launched(blocks(n, dst), list(map(addressof, arguments)))

        return launch

    def load_many(self, source: BatchSource) -> ManyKernel:
        kernel: ManyKernel | None = self._kernel(source, 0, 0)
        if kernel is not None:
            return kernel
        launched = self._launcher(source)

        def launch(blocks: int, table: np.ndarray[Any, Any]) -> None:
            launched(blocks, [table.ctypes.data])

        return launch

    def _launcher(self, source: KernelSource | BatchSource) -> Callable[[int, Sequence[int]], None]:
        """A function that launches a kernel on the current device, given the number of blocks and the addresses of the
        arguments; slower than the extension module."""
        from cupy.cuda import get_current_stream
        from cupy_backends.cuda.api import driver, runtime

        device, launch_kernel, set_device = self.current(), driver.launchKernel, runtime.setDevice
        function = self._function(source, device)

        def launch(blocks: int, addresses: Sequence[int]) -> None:
            # Makes the device's context current in this thread: the driver needs it, and CuPy may not have had to.
            set_device(device)
            listed = (c_void_p * len(addresses))(*addresses)
            stream = get_current_stream(device).ptr
            # CUDA copies the arguments before it returns.
            launch_kernel(function, blocks, 1, 1, source.threads, 1, 1, 0, stream, addressof(listed), 0)

        return launch

    @cached_property
    def _addresses(self) -> tuple[int, int]:
        """The functions that the extension module launches with; 0 where one is missing."""
        return nvidia.function("cuLaunchKernelEx"), nvidia.function("cuCtxGetDevice")

    def _kernel(self, source: KernelSource | BatchSource, elements: int, ahead: int) -> Any:
        """A kernel on the current device that the extension module launches; None where it cannot."""
        from cupy.cuda import get_current_stream

        if MODULE is None or not all(self._addresses):
            return None
        device = self.current()
        function = self._function(source, device)
        return MODULE.kernel(
            *self._addresses, function, source.threads, elements, ahead, device, get_current_stream, _failed
        )

    def _function(self, source: KernelSource | BatchSource, device: int) -> int:
        """The kernel on the current device, whose index is `device`."""
        from cupy_backends.cuda.api import driver, runtime

        # Also makes the device's context current in this thread.
        runtime.setDevice(device)
        image = compiler.compile_for(source.text, source.name, self._capability(device))
        # Kept for the life of the process: a plan may be used at any time, also while Python shuts down.
        function = int(driver.moduleGetFunction(driver.moduleLoadData(image), source.name))
        self._load(function)
        return function

    @staticmethod
    def _load(function: int) -> None:
        """Load a function now. CUDA would do so at its first launch, where a graph may be captured."""
        from cupy_backends.cuda.api import driver

        address = nvidia.function("cuFuncLoad")
        if not address:
            # Drivers before CUDA 12.4 load it to answer a question.
            driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
            return
        status = CFUNCTYPE(c_int, c_void_p)(address)(function)
        if status:
            raise driver.CUDADriverError(status)

    @cached_property
    def argument_bytes(self) -> int:
        versions = nvidia.cuda_version() or (0, 0), compiler.compiler().version
        return ARGUMENT_BYTES[min(versions) >= LARGE_ARGUMENTS]

    @cached_property
    def empty(self) -> Callable[..., Any]:
        import cupy

        array, allocate = cupy.ndarray, cupy.cuda.alloc

        def empty(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
            # CuPy checks the dtype only where it allocates by itself.
            return array(shape, dtype, allocate(math.prod(shape) * dtype.itemsize), strides)

        return empty

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        return np.asarray(x.get())

    def to_device(self, x: Any) -> Any:
        import cupy

        return cupy.array(x, order="C")

    def using(self, stream: int, device: int) -> contextlib.AbstractContextManager[None]:
        from cupy.cuda import get_current_stream

        return self.on(device) if get_current_stream(device).ptr == stream else self._using(stream, device)

    @contextlib.contextmanager
    def _using(self, stream: int, device: int) -> Iterator[None]:
        from cupy.cuda import Stream

        with self.on(device), Stream.from_external(_Foreign(stream)):
            yield

    def follow(self, stream: int, device: int) -> None:
        from cupy.cuda import Event, Stream, get_current_stream

        with self.on(device):
            # An event belongs to the device that it is made on, and only streams of that one can record it.
            event = Event(disable_timing=True)
            event.record(Stream.from_external(_Foreign(stream)))
        get_current_stream().wait_event(event)

    def synchronize(self) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()

    def device_of(self, address: int) -> int:
        from cupy_backends.cuda.api import runtime

        return int(runtime.pointerGetAttributes(address).device)

    @staticmethod
    def _capability(device: int) -> tuple[int, int]:
        import cupy

        text = cupy.cuda.Device(device).compute_capability
        return int(text[:-1]), int(text[-1])


_driver: Driver = CupyDriver()
_kernels: dict[tuple[KernelSpec[KernelSource], int], Kernel] = {}
#: Those of casts again, by the fields of their `CastSpec`: to make one and to hash it takes longer than to look it up.
_casts: dict[tuple[CastRule, Shape, bool, FusedOps | None, int], Kernel] = {}
_many: dict[tuple[KernelSpec[BatchSource], int], ManyKernel] = {}
_available = False


def unavailable() -> tuple[str, str] | None:
    """The reason why no cast can run on a GPU, and the remedy, or None. None is remembered; a reason is looked for
    again.
    """
    global _available  # noqa: PLW0603 (asking takes longer than a small cast)
    problem = None if _available else _driver.unavailable()
    _available = problem is None
    return problem


def driver() -> Driver:
    return _driver


def use(other: Driver) -> Driver:
    """Put another driver in place, without any kernel or plan made so far; the one that it replaces."""
    global _driver, _available  # noqa: PLW0603 (one object is what this module is for)
    before, _driver = _driver, other
    _available = False
    _kernels.clear()
    _casts.clear()
    _many.clear()
    for forget in gpu.ON_NEW_DRIVER:
        forget()
    return before


def kernel(spec: KernelSpec[KernelSource], device: int) -> Kernel:
    """The kernel on the current device, whose index is `device`.

    RuntimeError for one that is not loaded yet while a CUDA graph is captured: loading would break the capture.
    """
    found = _kernels.get((spec, device))
    if found is None:
        source = spec.source()
        src, dst = source.rule.src.name, source.rule.dst.name
        what = f"cast: {src} to {dst}" if isinstance(spec, CastSpec) else f"gpucast: {source.name}"
        _check_capture(what, " (gpucast.warmup compiles most kernels ahead of time)")
        # Two threads may both load: the second finds the cubin in the cache, and either kernel serves.
        found = _kernels[spec, device] = _driver.load(source)
    return found


def cast_kernel(rule: CastRule, shape: Shape, unpacked: bool, ops: FusedOps | None, device: int) -> Kernel:
    """``kernel(CastSpec(rule, shape, unpacked, ops), device)``, more quickly."""
    key = (rule, shape, unpacked, ops, device)
    found = _casts.get(key)
    if found is None:
        found = _casts[key] = kernel(CastSpec(rule, shape, unpacked, ops), device)
    return found


def loaded(rule: CastRule, device: int) -> Kernel | None:
    """The kernel of plain casts of contiguous arrays, if it is loaded on a device."""
    return _casts.get((rule, "contiguous", False, None, device))


def many_kernel(spec: KernelSpec[BatchSource], device: int) -> ManyKernel:
    """The kernel for many arrays on the current device, whose index is `device`; RuntimeError as for `kernel`."""
    found = _many.get((spec, device))
    if found is None:
        source = spec.source()
        _check_capture(f"gpucast: {source.name}")
        found = _many[spec, device] = _driver.load_many(source)
    return found


def load_everywhere(specs: Iterable[KernelSpec[Any]]) -> None:
    """Load kernels on all devices."""
    specs = list(specs)
    for device in range(_driver.count()):
        with _driver.on(device):
            for spec in specs:
                if isinstance(spec.source(), BatchSource):
                    many_kernel(spec, device)
                else:
                    kernel(spec, device)


def _check_capture(what: str, more: str = "") -> None:
    if _driver.capturing():
        raise RuntimeError(
            f"{what} is not loaded yet, and loading is not possible while a CUDA graph is captured; make the call "
            f"once before the capture{more}"
        )
