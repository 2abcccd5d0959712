# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the CUDA driver whose work runs late: each stream is a queue, and only waits put queues in order.

Nothing runs before it must. Then one stream runs as far as it can before the next one does, in an order that a test
chooses: what waits for nothing is overtaken by all that may overtake it. Memory that is given back is overwritten on
the stream of its owner, as by the next array there.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cupy
import numpy as np

from gpucast.kernel.kernel import Kernel
from host_driver import HostDriver

_ALIGNMENT = 256
#: What lies in memory that nobody has written yet, or that somebody else uses now.
_POISON = 0xA5


class _Event:
    """A place in a stream. It is reached when all work before it is done."""

    def __init__(self, stream: int) -> None:
        self.stream, self.reached = stream, False


class Memory:
    """Memory on device 0 that a stream owns. Whoever holds its array holds it."""

    def __init__(self, driver: DelayedDriver, nbytes: int, stream: int) -> None:
        store = np.full(nbytes + _ALIGNMENT, _POISON, np.uint8)
        skip = -store.ctypes.data % _ALIGNMENT
        self.bytes = store[skip : skip + nbytes]
        self.address = self.bytes.ctypes.data
        # Kept for good: what still reads it finds other bytes, and crashes nothing.
        driver.kept.append(store)
        weakref.finalize(self, driver.freed, store, stream)

    def array(self, shape: tuple[int, ...], kind: Any, strides: tuple[int, ...] | None = None) -> Any:
        """A CuPy array over it."""
        memory = cupy.cuda.UnownedMemory(self.address, self.bytes.nbytes, self, 0)
        return cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0), strides)


class DelayedDriver(HostDriver):
    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[int, deque[Callable[[], object] | _Event]] = defaultdict(deque)
        self.kept: list[Any] = []
        #: The streams in the order in which they run.
        self.order: Sequence[int] = ()
        #: The stream whose work goes to a graph instead, and that work.
        self.captured: int | None = None
        self.graph: list[Callable[[], object]] = []

    # ---- queues ----

    def give(self, work: Callable[[], object], stream: int | None = None) -> None:
        """Give work to a stream, by default the current one."""
        stream = self.stream() if stream is None else stream
        (self.graph if stream == self.captured else self.queues[stream]).append(work)

    def wait(self, stream: int, other: int) -> None:
        """Let a stream wait for the work that another one has by now."""
        assert self.captured not in (stream, other), "CUDA captures no wait for a stream beside the graph"
        event = _Event(other)
        self.queues[other].append(lambda: setattr(event, "reached", True))
        self.queues[stream].append(event)

    def freed(self, store: np.ndarray[Any, Any], stream: int) -> None:
        self.give(lambda: store.fill(_POISON), stream)

    def drain(self) -> None:
        """Run all work."""
        while any(self.queues.values()):
            for stream in (*self.order, *list(self.queues)):
                self._run(stream, False)

    def _run(self, stream: int, needed: bool) -> None:
        """Run a stream to its end, with what it waits for if it is `needed`, else as far as it can."""
        queue = self.queues[stream]
        while queue:
            first = queue[0]
            if isinstance(first, _Event) and not (first.reached or needed):
                return
            self._step(stream)

    def _step(self, stream: int) -> None:
        first = self.queues[stream][0]
        if isinstance(first, _Event):
            while not first.reached:
                self._step(first.stream)
            self.queues[stream].popleft()
        else:
            self.queues[stream].popleft()
            first()

    @contextlib.contextmanager
    def capture_of(self, stream: int) -> Iterator[list[Callable[[], object]]]:
        """Capture the work of a stream as a graph, and do none of it."""
        self.captured, self.graph = stream, []
        try:
            yield self.graph
        finally:
            self.captured = None

    # ---- the driver ----

    def capturing(self) -> bool:
        return self.captured == self.stream()

    def load(self, kernel: Kernel) -> Any:
        assert not self.capturing(), "loaded while a graph was captured"
        run, device = super().load(kernel), self.index

        def work(blocks: int, arguments: Any) -> None:
            with self.on(device):
                run(blocks, arguments)

        def launch(blocks: int, arguments: Any) -> None:
            held = arguments if isinstance(arguments, bytes) else arguments.copy()
            self.give(lambda: work(blocks, held), self.streams[device])

        return launch

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> Any:
        assert not self.capturing(), "allocated while a graph was captured"
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return Memory(self, nbytes, self.stream()).array(shape, dtype, strides)

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        self.synchronize()
        return super().to_host(x)

    def to_device(self, x: Any) -> Any:
        copy = self.empty(x.shape, x.dtype)
        if isinstance(x, np.ndarray):
            # CUDA copies memory that is not pinned before it returns.
            held = x.copy()
            self.kept.append(held)
            address = held.ctypes.data
        else:
            address = x.data.ptr
        to, nbytes = copy.data.ptr, x.nbytes
        self.give(lambda: ctypes.memmove(to, address, nbytes))
        return copy

    def follow(self, stream: int, device: int) -> None:
        self.wait(self.stream(), stream)

    def synchronize(self) -> None:
        assert not self.capturing(), "waited for a stream that is captured"
        self._run(self.stream(), True)
