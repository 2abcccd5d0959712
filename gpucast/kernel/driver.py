# SPDX-License-Identifier: Apache-2.0
"""From a kernel's text to a call on a GPU. The only module that gives CUDA work, all of it through one object.

`driver()` gives that object. Tests put another in its place, one that works on host memory, and so run all above it.
`gpucast.warmup` puts one in its place that only notes the kernels, for its own calls in its own thread.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from ctypes import CFUNCTYPE, addressof, c_int, c_void_p, create_string_buffer
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import mul
from typing import Any, Protocol

import numpy as np

from gpucast.core.errors import DeviceUnavailable
from gpucast.core.extension import MODULE
from gpucast.kernel import ON_NEW_DRIVER, compiler, nvidia
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES, LARGE_ARGUMENTS
from gpucast.kernel.kernel import ARRAY, Kernel
from gpucast.kernel.recording import THREAD

#: CUDA_ERROR_INVALID_CONTEXT.
_NO_CONTEXT = 201
#: cudaErrorStreamCaptureImplicit.
_CAPTURE_IMPLICIT = 906
#: Of blocks: more than any launch has.
ANY_NUMBER = 2**31 - 1


#: The arguments of a launch: the bytes of `Kernel.arguments`, or a NumPy record of them.
Arguments = bytes | np.ndarray[Any, Any]


class Launch(Protocol):
    """A kernel loaded on one device, which is the current one whenever it is called.

    Launches so many blocks, at least one, on the device's current stream; copies the arguments and returns at once.
    """

    def __call__(self, blocks: int, arguments: Arguments) -> None: ...


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

    def load(self, kernel: Kernel) -> Launch:
        """Compile (or find in the cache) and load on the current device."""

    @property
    def argument_bytes(self) -> tuple[int, int]:
        """The bytes of arguments of a short list of arrays, which is quicker to give, and the most of a kernel."""

    def resident(self, kernel: Kernel) -> int:
        """The most blocks to launch of a kernel whose blocks stay, which is loaded: as many as the current device holds
        at a time. `ANY_NUMBER` where they do not stay on such a device."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        """An array without gaps on the current device, C-contiguous where no strides are given.

        Any dtype will do, also those that CuPy does not know.
        """

    def allocate(self, nbytes: int) -> Any:
        """Memory on the current device, for an array."""

    def empty_all(self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> list[Any]:
        """`empty` of several."""

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
        return int(self._current_stream().ptr)

    @cached_property
    def _current_stream(self) -> Callable[[], Any]:
        from cupy.cuda import get_current_stream

        return get_current_stream  # type: ignore[no-any-return]

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

    def load(self, kernel: Kernel) -> Launch:
        from cupy.cuda import get_current_stream

        device = self.current()
        function, offsets = self._function(kernel, device), tuple(kernel.arguments.offsets.values())
        if MODULE is None or not all(self._addresses):
            return self._launcher(function, kernel.threads, offsets, device)
        launch: Launch = MODULE.kernel(
            *self._addresses, function, kernel.threads, kernel.block, kernel.ahead, kernel.arguments.nbytes, offsets,
            device, get_current_stream, _failed,
        )  # fmt: skip
        return launch

    @staticmethod
    def _launcher(function: int, threads: int, offsets: tuple[int, ...], device: int) -> Launch:
        """A launch without the extension module, which is quicker."""
        from cupy.cuda import get_current_stream
        from cupy_backends.cuda.api import driver, runtime

        launch_kernel, set_device, listed = driver.launchKernel, runtime.setDevice, c_void_p * len(offsets)

        def launch(blocks: int, arguments: Arguments) -> None:
            # Makes the device's context current in this thread: the driver needs it, and CuPy may not have had to.
            set_device(device)
            held = create_string_buffer(arguments, len(arguments)) if isinstance(arguments, bytes) else arguments
            first = held.ctypes.data if isinstance(held, np.ndarray) else addressof(held)
            places = listed(*(first + offset for offset in offsets))
            stream = get_current_stream(device).ptr
            # CUDA copies the arguments before it returns.
            launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, addressof(places), 0)

        return launch

    @cached_property
    def _addresses(self) -> tuple[int, int]:
        """The functions that the extension module launches with; 0 where one is missing."""
        return nvidia.function("cuLaunchKernelEx"), nvidia.function("cuCtxGetDevice")

    def _function(self, kernel: Kernel, device: int) -> int:
        """The kernel on the current device, whose index is `device`."""
        from cupy_backends.cuda.api import driver, runtime

        # Also makes the device's context current in this thread.
        runtime.setDevice(device)
        image = compiler.compile_for(kernel.text, kernel.name, self._capability(device))
        # Kept for the life of the process: a plan may be used at any time, also while Python shuts down.
        function = int(driver.moduleGetFunction(driver.moduleLoadData(image), kernel.name))
        self._load(function)
        if kernel.stays_from is not None:
            # The kernel goes by what it was compiled for, which for a device newer than NVRTC is less.
            known = compiler.architecture(self._capability(device))
            stays = int("".join(filter(str.isdigit, known))) >= kernel.stays_from
            blocks = self._blocks_at_a_time(function, kernel.threads, device) if stays else ANY_NUMBER
            self._resident[kernel, device] = blocks
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
    def argument_bytes(self) -> tuple[int, int]:
        versions = nvidia.cuda_version() or (0, 0), compiler.compiler().version
        return ARGUMENT_BYTES[0], ARGUMENT_BYTES[min(versions) >= LARGE_ARGUMENTS]

    def resident(self, kernel: Kernel) -> int:
        return self._resident[kernel, self.current()]

    @cached_property
    def _resident(self) -> dict[tuple[Kernel, int], int]:
        """The answers of `resident`, from `_function` on."""
        return {}

    @staticmethod
    def _blocks_at_a_time(function: int, threads: int, device: int) -> int:
        from cupy_backends.cuda.api import driver, runtime

        multiprocessors = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))
        return multiprocessors * int(driver.occupancyMaxActiveBlocksPerMultiprocessor(function, threads, 0))

    @cached_property
    def allocate(self) -> Callable[[int], Any]:
        from cupy.cuda import alloc

        return alloc  # type: ignore[no-any-return]

    @cached_property
    def empty(self) -> Callable[..., Any]:
        import cupy

        array, allocate = cupy.ndarray, self.allocate

        def empty(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
            # CuPy checks the dtype only where it allocates by itself.
            return array(shape, dtype, allocate(math.prod(shape) * dtype.itemsize), strides)

        return empty

    def empty_all(self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> list[Any]:
        import cupy

        # The functions themselves: an array each of their own would take twice as long.
        sizes = map(mul, map(math.prod, shapes), repeat(dtype.itemsize))
        return list(map(cupy.ndarray, shapes, repeat(dtype), map(cupy.cuda.alloc, sizes)))

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
#: What the calls of this thread use instead, where it runs nothing.
_recorder: ContextVar[Driver | None] = ContextVar("gpucast_recorder", default=None)
#: By the name and the line of a kernel, which tell it from all others, and the device.
_loaded: dict[tuple[str, str, int], Launch] = {}
_available = False


def unavailable() -> tuple[str, str] | None:
    """The reason why no cast can run on a GPU, and the remedy, or None. None is remembered; a reason is looked for
    again.
    """
    global _available  # noqa: PLW0603 (asking takes longer than a small cast)
    if _recorder.get() is not None:
        return None
    problem = None if _available else _driver.unavailable()
    _available = problem is None
    return problem


def driver() -> Driver:
    return _recorder.get() or _driver


def usable(caller: str) -> Driver:
    """The driver, for work that a call gives it. DeviceUnavailable, with the reason and the remedy, where there is no
    GPU for it."""
    problem = unavailable()
    if problem is not None:
        raise DeviceUnavailable(f"{caller}: no GPU can be used here: {problem[0]}; {problem[1]}")
    return _recorder.get() or _driver


def is_dry_run() -> bool:
    """Whether the calls of this thread run nothing."""
    return _recorder.get() is not None


@contextlib.contextmanager
def dry_run(recorder: Driver) -> Iterator[None]:
    """Within, the calls of this thread ask `recorder` for kernels, and keep none; other threads see nothing of it."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def use(other: Driver) -> Driver:
    """Put another driver in place, without any kernel or plan made so far; the one that it replaces."""
    global _driver, _available  # noqa: PLW0603 (one object is what this module is for)
    before, _driver = _driver, other
    _available = False
    _loaded.clear()
    for forget in ON_NEW_DRIVER:
        forget()
    return before


def ready(kernel: Kernel, device: int) -> Launch:
    """The kernel on the current device, whose index is `device`; to be kept.

    RuntimeError for one that is not loaded yet while a CUDA graph is captured: loading would break the capture.
    """
    recorder = _recorder.get()
    if recorder is not None:
        return recorder.load(kernel)
    key = kernel.name, kernel.line, device
    found = _loaded.get(key)
    if found is None:
        if _driver.capturing():
            raise RuntimeError(
                f"gpucast: {kernel.name} is not loaded yet, and loading is not possible while a CUDA graph is "
                "captured; make the call once before the capture (gpucast.warmup compiles most kernels ahead of time)"
            )
        # Two threads may both load: the second finds the cubin in the cache, and either kernel serves.
        found = _loaded[key] = _driver.load(kernel)
    return found


def load(kernel: Kernel, device: int) -> Launch:
    """The same, to be launched by this call, which a plan may repeat."""
    found, recording = ready(kernel, device), THREAD.recording
    return found if recording is None else recording.launch(kernel, found)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
    """`Driver.empty`."""
    array = (_recorder.get() or _driver).empty(shape, dtype, strides)
    recording = THREAD.recording
    if recording is not None:
        recording.made.append(array)
    return array


def moves() -> None:
    """Say that memory is copied to or from the host, or to another device, which no plan repeats."""
    recording = THREAD.recording
    if recording is not None:
        recording.is_whole = False


def loaded(kernel: Kernel, device: int) -> Launch | None:
    """The kernel if it is loaded on a device."""
    return None if _recorder.get() is not None else _loaded.get((kernel.name, kernel.line, device))


#: The arguments of a kernel of one array, but for the struct that some have after these: (src, src_bit, dst, n).
array_arguments = ARRAY.pack


def launch(kernel: Kernel, device: int, src: int, dst: int, n: int, given: bytes = b"") -> None:
    """Launch a kernel of one array on the current device, whose index is `device`, for n > 0 elements at these
    addresses. `given`: the bytes of the struct after the other arguments. RuntimeError as for `load`."""
    blocks = kernel.blocks(n, dst)
    start = load(kernel, device)
    if kernel.stays_from is not None:
        blocks = min(blocks, driver().resident(kernel))
    start(blocks, array_arguments(src, 0, dst, n) + given)


def load_everywhere(kernels: Iterable[Kernel]) -> None:
    """Load kernels on all devices."""
    kernels = list(kernels)
    for device in range(_driver.count()):
        with _driver.on(device):
            for kernel in kernels:
                ready(kernel, device)
