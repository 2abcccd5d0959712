# SPDX-License-Identifier: Apache-2.0
"""The machine that casts are measured on. All device access goes through this object, which tests can replace."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The alignment in bytes of arrays from `Machine.empty`.
ALIGNMENT = 256
#: Sets of arrays together have so many times the size of the cache, but there are no more than MOST_SETS: enough for
#: 2^14 elements of 6 bytes beside a cache of 100 MB.
CACHES, MOST_SETS = 4, 1 << 12


class Machine(Protocol):
    """A GPU, or the host. Arrays are flat uint8 arrays unless stated otherwise; times are in seconds."""

    #: The GPU's name; "none" for the host.
    device: str
    #: The bytes that have to be moved between two uses of an array to evict it from the cache.
    cache_bytes: int
    #: The vendor's peak bandwidth of the memory in bytes per second; 0 if it is not known.
    peak: float
    #: The handle of the stream that gets all work; None on the host.
    stream: int | None

    def facts(self) -> dict[str, Any]:
        """What a reader needs to judge the figures: names, versions, sizes; serialisable as JSON."""

    def state(self) -> dict[str, Any]:
        """Current clocks, power, temperature and throttling, serialisable as JSON; {} if they are not available."""

    def current(self) -> AbstractContextManager[None]:
        """Work inside the ``with`` block goes to the machine's stream."""

    def free_bytes(self) -> int:
        """Bytes that can be allocated."""

    def release(self) -> None:
        """Return cached memory to the system."""

    def empty(self, nbytes: int) -> Any:
        """An uninitialised array at a multiple of ALIGNMENT."""

    def upload(self, into: Any, data: Array) -> None:
        """Copy a host array of as many bytes into an array."""

    def download(self, x: Any) -> Array:
        """A host copy of a contiguous array of any dtype; waits for the stream."""

    def copy(self, dst: Any, src: Any) -> None:
        """Copy an array into another of equal size by the system's own copy; does not wait."""

    def copy_kernels(self) -> dict[str, Callable[[Any, Any], object]]:
        """Our own 16-byte copy kernels by name, with the signature of `copy`; none on the host."""

    def fill(self, x: Any, byte: int) -> None:
        """Set every byte of an array."""

    def record(self) -> Any:
        """An event after all work that was enqueued so far."""

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two events, which have both occurred."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def now(self) -> float:
        """The host's clock."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object] | None:
        """A graph of the work that `work` enqueues, which can be launched many times; None if there are no graphs."""


class HostMachine:
    """The host: NumPy arrays, and events that are readings of the clock."""

    device = "none"
    stream: int | None = None
    peak = 0.0

    def __init__(self, cache_bytes: int = 16 << 20) -> None:
        self.cache_bytes = cache_bytes

    def facts(self) -> dict[str, Any]:
        return {
            "name": "none",
            "processor": processor(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        }

    def state(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def current(self) -> Iterator[None]:
        # NumPy would warn of overflow, which is intended here.
        with np.errstate(all="ignore"):
            yield

    def free_bytes(self) -> int:
        # Small enough for any machine; the host's figures are only a rough guide.
        return 2 << 30

    def release(self) -> None:
        pass

    def empty(self, nbytes: int) -> Any:
        space = np.empty(nbytes + ALIGNMENT, np.uint8)
        begin = -space.ctypes.data % ALIGNMENT
        return space[begin : begin + nbytes]

    def upload(self, into: Any, data: Array) -> None:
        into[...] = data.reshape(-1).view(np.uint8)

    def download(self, x: Any) -> Array:
        return np.array(x, order="C")

    def copy(self, dst: Any, src: Any) -> None:
        np.copyto(dst, src)

    def copy_kernels(self) -> dict[str, Callable[[Any, Any], object]]:
        return {}

    def fill(self, x: Any, byte: int) -> None:
        x[...] = byte

    def record(self) -> Any:
        return self.now()

    def seconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def synchronize(self) -> None:
        pass

    def now(self) -> float:
        return time.perf_counter()

    def capture(self, work: Callable[[], object]) -> Callable[[], object] | None:
        return None


def rotation(machine: Machine, each: int) -> int:
    """How many sets of `each` bytes to rotate through, so that none is in the cache when its turn comes again."""
    return min(max(2, -(-CACHES * machine.cache_bytes // each)), MOST_SETS)


def processor() -> str:
    """The model of the host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
