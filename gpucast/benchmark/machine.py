# SPDX-License-Identifier: Apache-2.0
"""What casts are measured on. All device access of the benchmark goes through one object, which tests can replace."""

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

#: The multiple of bytes at which arrays of `Machine.empty` begin.
ALIGNMENT = 256


class Machine(Protocol):
    """A GPU, or the host. Arrays are flat and of uint8, unless told otherwise; times are in seconds."""

    #: The GPU's name; "none" for the host.
    device: str
    #: What has to be moved between two uses of an array, for it to have left the cache: bytes.
    cache_bytes: int
    #: The vendor's peak of the memory, bytes per second; 0 where it is not known.
    peak: float
    #: The stream that all work is given to, as an integer; None on the host.
    stream: int | None

    def facts(self) -> dict[str, Any]:
        """What a reader needs to judge the figures: names, versions, sizes; as JSON holds it."""

    def state(self) -> dict[str, Any]:
        """Clocks, power, temperature and throttling now; as JSON holds it, {} where nothing tells them."""

    def current(self) -> AbstractContextManager[None]:
        """Work inside the ``with`` block goes to the machine's stream."""

    def free_bytes(self) -> int:
        """Bytes that can be allocated."""

    def release(self) -> None:
        """Give memory that is kept for later back to the system."""

    def empty(self, nbytes: int) -> Any:
        """An array without set values, at a multiple of ALIGNMENT."""

    def upload(self, into: Any, data: Array) -> None:
        """Copy a host array of as many bytes into an array."""

    def download(self, x: Any) -> Array:
        """A host copy of a contiguous array of any dtype; waits for the stream."""

    def copy(self, dst: Any, src: Any) -> None:
        """Copy an array into another as large with the system's own copy; does not wait."""

    def copy_kernels(self) -> dict[str, Callable[[Any, Any], object]]:
        """Copies as `copy`, made by our own 16-byte copy kernels, by name; none on the host."""

    def fill(self, x: Any, byte: int) -> None:
        """Set every byte of an array."""

    def record(self) -> Any:
        """A mark behind all work that was given so far."""

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two marks; both are reached."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def now(self) -> float:
        """The host's clock."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object] | None:
        """A graph of what `work` gives, to be launched many times; None where there are no graphs."""


class HostMachine:
    """The host: NumPy arrays, and a clock that marks are read from at once."""

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
        # NumPy tells of overflow, which here is meant.
        with np.errstate(all="ignore"):
            yield

    def free_bytes(self) -> int:
        # Small enough for any machine: the host's figures are no more than a hint.
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


def processor() -> str:
    """The model of the host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
