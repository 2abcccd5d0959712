# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver: real CuPy arrays over host memory, and the host build of the very same kernels.

So the whole Python device path runs without a GPU: placement, layouts, plans, launches, everything but CUDA itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import cupy
import numpy as np
import pytest

from gpucast import PackedArray
from gpucast.core.rule import CastRule
from gpucast.kernel import driver as launch
from gpucast.kernel.batch_kernel import ARGUMENT_BYTES
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.kernel.kernel import Kernel
from gpucast.parity import host_build


@contextlib.contextmanager
def installed(driver: Any) -> Iterator[Any]:
    """Put a driver in the place of CUDA's for the length of a ``with`` block, which gets it."""
    before = launch.use(driver)
    try:
        yield driver
    finally:
        launch.use(before)


#: Kernels by name, text and architecture. All drivers share them, because building one takes longer than a test.
_BUILT: dict[tuple[str, int, int], host_build.HostKernels] = {}
#: A kernel's blockIdx and threadIdx are globals of its host build.
_RUNNING = threading.Lock()


class HostDriver:
    def __init__(self, devices: int = 2, arch: int = 90) -> None:
        self.devices = devices
        #: The architecture whose instructions the kernels have.
        self.arch = arch
        self.index = 0
        self.capture = False
        self.streams = {0: 0, 1: 100}
        self.loaded: list[tuple[str, int]] = []
        self.launched: list[tuple[str, int]] = []
        self.copied = 0
        #: Which device waited for which stream; None is the host.
        self.waits: list[tuple[int | None, int]] = []
        #: The device of memory that other libraries own.
        self.memory_of = 0
        self.argument_bytes = ARGUMENT_BYTES

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile many kernels at once, which is quicker than one by one."""
        new = [kernel for kernel in dict.fromkeys(kernels) if self._key(kernel) not in _BUILT]
        if new:
            _BUILT.update(dict.fromkeys(map(self._key, new), host_build.build(new, optimize=False, arch=self.arch)))

    def _key(self, kernel: Kernel) -> tuple[str, int, int]:
        return kernel.name, hash(kernel.text), self.arch

    def unavailable(self) -> tuple[str, str] | None:
        return None

    def count(self) -> int:
        return self.devices

    def current(self) -> int:
        return self.index

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before, self.index = self.index, device
        try:
            yield
        finally:
            self.index = before

    def stream(self) -> int:
        return self.streams[self.index]

    def resident(self, kernel: Kernel) -> int:
        assert kernel.stays_from is not None
        return 3 if self.arch >= kernel.stays_from else launch.ANY_NUMBER

    def capturing(self) -> bool:
        return self.capture

    def load(self, kernel: Kernel) -> Any:
        self.loaded.append((kernel.name, self.index))
        self.prepare([kernel])
        kernels, device = _BUILT[self._key(kernel)], self.index

        def launch(blocks: int, arguments: bytes | np.ndarray[Any, Any]) -> None:
            assert self.index == device and blocks > 0, "launched beside its device, or without work"
            assert kernel.arguments.nbytes <= self.argument_bytes[1]
            self.launched.append((kernel.name, self.streams[device]))
            with _RUNNING:
                kernels.start(kernel.name, blocks, arguments)

        return launch

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        assert not self.capture, "allocated while a graph was captured"
        array = device_array(shape, dtype, self.index)
        return cupy.ndarray(shape, dtype, array.data, strides)

    def allocate(self, nbytes: int) -> Any:
        return self.empty((nbytes,), np.dtype(np.uint8)).data

    def empty_all(self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> list[Any]:
        return [self.empty(shape, dtype) for shape in shapes]

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        assert x.flags.c_contiguous and x.dtype.kind in "uV" and x.device.id == self.index
        self.copied += x.nbytes
        return np.frombuffer(ctypes.string_at(x.data.ptr, x.nbytes), x.dtype).reshape(x.shape).copy()

    def to_device(self, x: Any) -> Any:
        copy = device_array(x.shape, x.dtype, self.index)
        x = np.frombuffer(ctypes.string_at(x.data.ptr, x.nbytes), x.dtype) if not isinstance(x, np.ndarray) else x
        assert x.flags.c_contiguous
        ctypes.memmove(copy.data.ptr, x.ctypes.data, copy.nbytes)
        self.copied += copy.nbytes
        return copy

    @contextlib.contextmanager
    def using(self, stream: int, device: int) -> Iterator[None]:
        before, self.streams[device] = self.streams[device], stream
        try:
            with self.on(device):
                yield
        finally:
            self.streams[device] = before

    def follow(self, stream: int, device: int) -> None:
        self.waits.append((self.stream(), stream))

    def synchronize(self) -> None:
        self.waits.append((None, self.stream()))

    def device_of(self, address: int) -> int:
        return self.memory_of


class Quiet(HostDriver):
    """Notes the kernels that are loaded, and computes nothing."""

    def __init__(self, arch: int = 90) -> None:
        super().__init__(arch=arch)
        self.kernels: list[Kernel] = []

    def load(self, kernel: Kernel) -> Any:
        self.kernels.append(kernel)
        self.loaded.append((kernel.name, self.index))
        return lambda *_: None


def rehearsed(calls: Iterable[Callable[[], Any]], arch: int = 90) -> HostDriver:
    """A driver with the kernels that some calls launch, which are built together; what the calls return is nothing."""
    quiet, driver = Quiet(arch), HostDriver(arch=arch)
    with installed(quiet):
        for call in calls:
            call()
    driver.prepare(quiet.kernels)
    return driver


#: Where tests of the device path run: on the stand-in, and on a GPU where there is one.
_PROBLEM = launch.unavailable()
_REASON = f"the same test runs on the stand-in, [host build]: {_PROBLEM}"
DEVICES = (
    "host build",
    pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(_PROBLEM is not None, reason=_REASON)]),
)


class _Place:
    """Where `upload` and `download` copy to and from."""

    on_gpu = False


@contextlib.contextmanager
def on_gpu() -> Iterator[None]:
    """Within, `upload` and `download` copy to and from the GPU."""
    _Place.on_gpu = True
    try:
        yield
    finally:
        _Place.on_gpu = False


#: The addresses of the arrays that are in use.
ARRAYS: WeakValueDictionary[range, Any] = WeakValueDictionary()


def device_array(shape: tuple[int, ...], dtype: Any, device: int = 0, offset: int = 0) -> Any:
    """An array without set values on "device" memory, `offset` bytes behind an address that is a multiple of 256."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if _Place.on_gpu:
        return cupy.ndarray(shape, dtype, cupy.empty(nbytes + offset, np.uint8).data + offset)
    store = np.full(nbytes + 256 + offset + 16, 0xA5, np.uint8)
    address = -(-store.ctypes.data // 256) * 256 + offset
    ARRAYS[range(address, address + nbytes)] = store
    memory = cupy.cuda.UnownedMemory(address, nbytes, store, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def upload(x: np.ndarray[Any, Any], device: int = 0, offset: int = 0) -> Any:
    """A NumPy array (any dtype) as a CuPy array of the same dtype, or tagged with it."""
    plain = np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.itemsize}")
    copy = device_array(x.shape, plain.dtype, device, offset)
    if _Place.on_gpu:
        copy.set(plain)
    else:
        ctypes.memmove(copy.data.ptr, plain.ctypes.data, plain.nbytes)
    return copy.view(x.dtype)


def download(x: Any) -> np.ndarray[Any, Any]:
    """Any CuPy array as a NumPy copy, strides and all."""
    code = np.dtype(f"u{x.dtype.itemsize}")
    if _Place.on_gpu:
        return np.asarray(x.view(code).get()).view(x.dtype)
    if x.size and x.flags.c_contiguous:
        return np.frombuffer(ctypes.string_at(x.data.ptr, x.nbytes), code).reshape(x.shape).copy().view(x.dtype)
    result = np.empty(x.shape, code)
    for place in np.ndindex(x.shape):
        address = x.data.ptr + sum(i * stride for i, stride in zip(place, x.strides, strict=True))
        result[place] = int.from_bytes(ctypes.string_at(address, code.itemsize), "little")
    return result.view(x.dtype)


def elements(y: Any) -> np.ndarray[Any, Any]:
    """Those of a result, wherever and however it is kept, as a NumPy array."""
    if isinstance(y, PackedArray):
        return PackedArray(elements(y.data), y.dtype, y.shape).get()
    return y if isinstance(y, np.ndarray) else download(y)


def both_shapes(rules: Iterable[CastRule]) -> Iterator[Kernel]:
    for rule in rules:
        for unpacked in {False, rule.src.packed}:
            yield cast_kernel(rule, "contiguous", unpacked)
            yield cast_kernel(rule, "strided", unpacked)
