# SPDX-License-Identifier: Apache-2.0
"""A GPU for the benchmark that is none: CuPy arrays over host memory, real kernels built for the host, and a clock that
goes forward only when work is given. So the whole benchmark runs, and every time is known beforehand."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bench.cases.buffers import Sets
from bench.cases.contenders import Run
from gpucast.core.dtypes import DType
from gpucast.core.rule import resolve
from gpucast.kernel.kernel import ARRAY, Kernel
from gpucast.parity.compare import wanted_codes
from host_driver import HostDriver, both_shapes, device_array

#: Bytes per second of the fake's copies; its copy kernel is a tenth quicker than its memcpy.
MEMCPY, COPY_KERNEL = 1.0e9, 1.1e9
#: The fixed seconds of a launch, in addition to those for its bytes.
LAUNCH = 5e-6
#: Seconds that a launch of many arrays takes, whatever their size.
MANY_LAUNCH = 2e-3


class FakeMachine:
    device = "NVIDIA Fake"
    cache_bytes = 1 << 14
    stream: int | None = 7

    def __init__(self, free: int = 1 << 26, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.time = 100.0
        self.free = free
        #: Seconds that pass beside the work that is given: the host's clock, where a whole run is to keep its time.
        self.clock = clock
        self.released = 0
        #: Each copy: its name, and the addresses and bytes.
        self.copies: list[tuple[str, int, int, int]] = []

    def spend(self, seconds: float, launches: int = 1) -> None:
        self.time += seconds + launches * LAUNCH

    def facts(self) -> dict[str, Any]:
        return {"name": self.device, "packages": {"numpy": np.__version__}}

    def state(self) -> dict[str, Any]:
        return {"clocks.sm": "1980", "power.draw": "500.00"}

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return self.free

    def release(self) -> None:
        self.released += 1

    def empty(self, nbytes: int) -> Any:
        return device_array((nbytes,), np.uint8)

    def upload(self, into: Any, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        assert into.nbytes == data.nbytes
        ctypes.memmove(into.data.ptr, data.ctypes.data, data.nbytes)

    def download(self, x: Any) -> np.ndarray:
        assert x.flags.c_contiguous
        return np.frombuffer(ctypes.string_at(x.data.ptr, x.nbytes), x.dtype).reshape(x.shape)

    def copy(self, dst: Any, src: Any) -> None:
        self._copy("memcpy", MEMCPY, dst, src)

    def copy_kernel(self, read: int, write: int) -> Callable[[Any, Any], object]:
        return lambda dst, src: self._copy(f"{read}:{write}", COPY_KERNEL, dst, src)

    def _copy(self, name: str, speed: float, dst: Any, src: Any) -> None:
        ctypes.memmove(dst.data.ptr, src.data.ptr, min(dst.nbytes, src.nbytes))
        self.copies.append((name, src.data.ptr, dst.data.ptr, dst.nbytes))
        self.spend((dst.nbytes + src.nbytes) / speed)

    def fill(self, x: Any, byte: int) -> None:
        ctypes.memset(x.data.ptr, byte, x.nbytes)

    def record(self) -> float:
        return self.time

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass

    def now(self) -> float:
        return self.time + self.clock()


class TimedDriver(HostDriver):
    """The host's kernels, at 0.99e9 bytes per second of the fake's clock."""

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__()
        self.machine = machine
        #: The source address of every launch.
        self.sources: list[int] = []

    def load(self, kernel: Kernel) -> Any:
        run, is_batch = super().load(kernel), "src" not in kernel.arguments.offsets
        bits = sum(kind.bits for kind in kernel.dtypes[:2])

        def timed(blocks: int, arguments: Any) -> None:
            run(blocks, arguments)
            if is_batch:
                self.machine.spend(MANY_LAUNCH)
                return
            src, _, _, n = ARRAY.layout.unpack_from(arguments)
            self.sources.append(src)
            self.machine.spend(n * bits / 8 / 0.99e9)

        return timed


def built_driver(pairs: Iterable[tuple[DType, DType]]) -> TimedDriver:
    """A driver of a fake machine, which has the kernels of some pairs."""
    driver = TimedDriver(FakeMachine())
    driver.prepare(both_shapes(resolve(*pair) for pair in pairs))
    return driver


class FakeRival:
    """Casts by the reference, at a speed of its own; `wrong` of its results differ, and `broken` ones raise."""

    allocates = False
    streamed = True

    def __init__(
        self, machine: FakeMachine, name: str, speed: float, *, wrong: int = 0, broken: bool = False, lacks: str = ""
    ) -> None:
        self.machine, self.name, self.speed = machine, name, speed
        self.wrong, self.broken, self.lacks = wrong, broken, lacks
        self.prepared = 0

    def supports(self, src: DType, dst: DType) -> bool:
        return not (src.packed or dst.packed) and self.lacks not in (src.name, dst.name)

    def prepare(self, sets: Sets) -> Run:
        if self.broken:
            raise NotImplementedError("no kernel for it\nand more lines")
        self.prepared += 1
        wanted = wanted_codes(resolve(sets.src, sets.dst), sets.taken(np.arange(min(sets.n, 1 << 20))))
        wanted[: self.wrong] ^= wanted.dtype.type(1)

        def run(i: int) -> np.ndarray:
            self.machine.spend(sets.n * (sets.src.bits + sets.dst.bits) / 8 / self.speed)
            return wanted

        return run

    def wait(self, result: Any) -> None:
        pass

    def codes(self, result: Any, dst: DType, start: int, stop: int) -> np.ndarray:
        return np.asarray(result[start:stop])
