# SPDX-License-Identifier: Apache-2.0
"""The GPU that is measured, through CuPy, on one stream of its own. All device access of the benchmark goes through
this object, which tests can replace."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.revision import processor

NDArray = npt.NDArray[Any]
#: Copies one array into another: `copy(dst, src)`.
Copy = Callable[[Any, Any], object]

#: The alignment in bytes of arrays from `Machine.empty`.
ALIGNMENT = 256
#: What nvidia-smi says of the device, and while it works: clocks, power and temperature.
_FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "ecc.mode.current")
_READINGS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")
_PACKAGES = ("numpy", "ml_dtypes", "cupy-cuda12x", "cupy-cuda13x", "torch", "triton", "jax", "transformer-engine")

_THREADS = 256
#: A thread reads READ vectors of 16 bytes and writes WRITE, so that a copy moves as many bytes to and from memory as a
#: cast. Every warp reads and writes 512 contiguous bytes; indices within a block have 32 bits.
COPY_KERNEL = r"""
struct alignas(16) Vector { unsigned int word[4]; };

template <bool Whole>
static __device__ __forceinline__ void copy(const Vector* src, Vector* dst, long long reads, long long writes) {
    Vector held[READ];
#pragma unroll
    for (unsigned int i = 0; i < READ; ++i) {
        const unsigned int at = threadIdx.x + i * THREADS;
        if (Whole || at < reads) held[i] = src[at];
        else held[i] = Vector{};
    }
#pragma unroll
    for (unsigned int i = 0; i < WRITE; ++i) {
        Vector made = held[i * READ / WRITE];
#pragma unroll
        for (unsigned int j = i * READ / WRITE + 1; j < (i + 1) * READ / WRITE; ++j)
            for (unsigned int k = 0; k < 4; ++k) made.word[k] ^= held[j].word[k];
        const unsigned int at = threadIdx.x + i * THREADS;
        if (Whole || at < writes) dst[at] = made;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gpucast_copy_READ_WRITE(const Vector* __restrict__ src, Vector* __restrict__ dst, long long reads, long long writes) {
    src += blockIdx.x * (long long)(THREADS * READ);
    dst += blockIdx.x * (long long)(THREADS * WRITE);
    reads -= blockIdx.x * (long long)(THREADS * READ);
    writes -= blockIdx.x * (long long)(THREADS * WRITE);
    if (reads >= THREADS * READ && writes >= THREADS * WRITE) copy<true>(src, dst, reads, writes);
    else copy<false>(src, dst, reads, writes);
}
"""


def copy_source(read: int, write: int) -> tuple[str, str]:
    """The name and the CUDA text of a copy kernel."""
    text = COPY_KERNEL.replace("READ_WRITE", f"{read}_{write}")
    for name, value in (("THREADS", _THREADS), ("READ", read), ("WRITE", write)):
        text = text.replace(name, str(value))
    return f"gpucast_copy_{read}_{write}", text


class Machine:
    """The current device. It uses a stream of its own, so that nothing else is in its queue."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        index = int(cupy.cuda.runtime.getDevice())
        self._properties: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(index)
        # nvidia-smi may number the devices in another order.
        self._bus = str(cupy.cuda.runtime.deviceGetPCIBusId(index))
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.stream: int | None = int(self._stream.ptr)
        self.device = self._properties["name"].decode(errors="replace")
        self.cache_bytes = int(self._properties["l2CacheSize"])

    def facts(self) -> dict[str, Any]:
        """What a reader needs to judge the figures: names, versions, sizes; serialisable as JSON."""
        runtime, properties = self._cupy.cuda.runtime, self._properties
        return {
            "name": self.device,
            "capability": f"{properties['major']}.{properties['minor']}",
            "sm_count": int(properties["multiProcessorCount"]),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "l2_bytes": self.cache_bytes,
            "cuda_driver": runtime.driverGetVersion(),
            "cuda_runtime": runtime.runtimeGetVersion(),
            "processor": processor(),
            "python": platform.python_version(),
            "packages": _versions(),
            **_nvidia_smi(_FACTS, self._bus),
        }

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and throttling; {} without nvidia-smi."""
        return _nvidia_smi(_READINGS, self._bus)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Work inside the ``with`` block goes to the machine's stream."""
        with self._stream:
            yield

    def free_bytes(self) -> int:
        """Bytes that can be allocated."""
        kept = self._cupy.get_default_memory_pool().free_bytes()
        return int(self._cupy.cuda.runtime.memGetInfo()[0]) + int(kept)

    def release(self) -> None:
        """Return cached memory to the system."""
        self.synchronize()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def empty(self, nbytes: int) -> Any:
        """An uninitialised array of bytes at a multiple of ALIGNMENT."""
        return self._cupy.empty(nbytes, np.uint8)

    def upload(self, into: Any, data: NDArray) -> None:
        """Copy a host array of as many bytes into an array."""
        # Waits, because the data may be pageable and be freed.
        into.set(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        self.synchronize()

    def download(self, x: Any) -> NDArray:
        """A host copy of a contiguous array of any dtype; waits for the stream."""
        codes = x.view(np.dtype(f"u{x.dtype.itemsize}"))
        return np.asarray(codes.get()).view(x.dtype)

    def copy(self, dst: Any, src: Any) -> None:
        """Copy an array into another of equal size by the system's own copy; does not wait."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(dst.data.ptr, src.data.ptr, dst.nbytes, runtime.memcpyDeviceToDevice, self.stream)

    def copy_kernel(self, read: int, write: int) -> Copy:
        """A kernel of ours that writes `write` bytes for every `read` bytes that it reads, 16 at a time."""
        name, text = copy_source(read, write)
        kernel = self._cupy.RawKernel(text, name)

        def copy(dst: Any, src: Any) -> object:
            assert src.nbytes % 16 == dst.nbytes % 16 == 0, "the copy kernel moves whole vectors"
            reads, writes = src.nbytes // 16, dst.nbytes // 16
            blocks = max(-(-reads // (_THREADS * read)), -(-writes // (_THREADS * write)))
            return kernel((blocks,), (_THREADS,), (src, dst, np.int64(reads), np.int64(writes)))

        return copy

    def fill(self, x: Any, byte: int) -> None:
        """Set every byte of an array."""
        x.fill(byte)

    def record(self) -> Any:
        """An event after all work that was given so far."""
        event = self._cupy.cuda.Event()
        event.record(self._stream)
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two events, which have both occurred."""
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def synchronize(self) -> None:
        """Wait until all work is done."""
        self._stream.synchronize()

    def now(self) -> float:
        """The host's clock, in seconds."""
        return time.perf_counter()


def _nvidia_smi(fields: Sequence[str], bus: str) -> dict[str, str]:
    """Readings by nvidia-smi's names; those that this version does not know are missing."""
    found = {}
    for name in fields:
        command = ["nvidia-smi", f"--id={bus}", f"--query-gpu={name}", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            found[name] = done.stdout.strip()
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
