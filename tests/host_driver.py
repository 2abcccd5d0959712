# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver: real CuPy arrays over host memory, and the host build of the very same kernels.

So the whole Python device path runs without a GPU: placement, layouts, plans, launches, everything but CUDA itself.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import cupy
import numpy as np

from gpucast import hostbuild
from gpucast.rule import Rule
from gpucast.source import KernelSource, Shape, kernel_source
from gpucast.strides import Dims


class HostDriver:
    def __init__(self, devices: int = 2) -> None:
        self.devices = devices
        self.index = 0
        self.capture = False
        self.streams = {0: 0, 1: 100}
        self.loaded: list[tuple[str, int]] = []
        self.launched: list[tuple[str, int]] = []
        self.copied = 0
        self._built: dict[tuple[Rule, Shape, bool], hostbuild.HostKernels] = {}

    def prepare(self, sources: Iterable[KernelSource]) -> None:
        """Compile many kernels at once, which is quicker than one by one."""
        sources = [
            source
            for source in dict.fromkeys(sources)
            if (source.rule, source.shape, source.unpacked) not in self._built
        ]
        kernels = hostbuild.build(sources)
        for source in sources:
            self._built[source.rule, source.shape, source.unpacked] = kernels

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

    def capturing(self, stream: int) -> bool:
        return self.capture

    def load(self, source: KernelSource) -> Any:
        self.loaded.append((source.name, self.index))
        self.prepare([source])
        kernels, device = self._built[source.rule, source.shape, source.unpacked], self.index

        def launch(src: int, src_bit: int, dst: int, n: int, dims: Dims | None, stream: int) -> None:
            assert stream == self.streams[device] and self.index == device, "launched beside its device and stream"
            self.launched.append((source.name, stream))
            if dims is None:
                kernels.run(source.rule, src, src_bit, dst, n, unpacked=source.unpacked)
            else:
                kernels.run_strided(source.rule, src, src_bit, dst, n, dims, unpacked=source.unpacked)

        return launch

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        assert not self.capture, "allocated while a graph was captured"
        return device_array(shape, dtype, self.index)

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


def device_array(shape: tuple[int, ...], dtype: Any, device: int = 0, offset: int = 0) -> Any:
    """An array without set values on "device" memory, `offset` bytes behind an address that is a multiple of 256."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    store = np.full(nbytes + 256 + offset + 16, 0xA5, np.uint8)
    address = -(-store.ctypes.data // 256) * 256 + offset
    memory = cupy.cuda.UnownedMemory(address, nbytes, store, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def upload(x: np.ndarray[Any, Any], device: int = 0, offset: int = 0) -> Any:
    """A NumPy array (any dtype) as a CuPy array of the same dtype, or tagged with it."""
    plain = np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.itemsize}")
    copy = device_array(x.shape, plain.dtype, device, offset)
    ctypes.memmove(copy.data.ptr, plain.ctypes.data, plain.nbytes)
    return copy.view(x.dtype)


def download(x: Any) -> np.ndarray[Any, Any]:
    """Any CuPy array on host memory as a NumPy copy, strides and all."""
    code = np.dtype(f"u{x.dtype.itemsize}")
    result = np.empty(x.shape, code)
    for place in np.ndindex(x.shape):
        address = x.data.ptr + sum(i * stride for i, stride in zip(place, x.strides, strict=True))
        result[place] = int.from_bytes(ctypes.string_at(address, code.itemsize), "little")
    return result.view(x.dtype)


def both_shapes(rules: Iterable[Rule]) -> Iterator[KernelSource]:
    for rule in rules:
        for unpacked in {False, rule.src.packed}:
            yield kernel_source(rule, "contiguous", unpacked=unpacked)
            yield kernel_source(rule, "strided", unpacked=unpacked)
