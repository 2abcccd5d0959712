# SPDX-License-Identifier: Apache-2.0
"""The engine of a device: its arrays, its launches, its streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpucast.arrays.array import Array
from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.libraries import Lent, Library
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.casting import cuda, cuda_batches, cuda_plans, cuda_workspace
from gpucast.casting.engine import Call, Engine
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType
from gpucast.kernel import devices, driver, streams
from gpucast.kernel.fused_kernel import FusedOps


class CudaEngine(Engine):
    """Arrays of CuPy, and PackedArrays over them. RuntimeError for work that a CUDA graph cannot capture."""

    device: int
    packs = True

    def __init__(self, device: int) -> None:
        self.device = device

    def empty(self, shape: tuple[int, ...], kind: DType, packs: bool = False) -> Any:
        with driver.driver().on(self.device):
            cuda.check_allocation()
            return cuda.new(shape, kind)

    def empty_like(self, source: Array, kind: DType) -> Array:
        with driver.driver().on(self.device):
            return cuda.empty_like(source, kind)

    def take(self, x: Any) -> Any:
        return x if device_index(x) == self.device else cuda.to_device(x, self.device)

    def received(self, y: Array, packed: bool) -> Array:
        x = y.array if y.packed or not y.dtype.packed or y.device is not None else PackedArray.pack(y.array)
        return Array.of(self.take(x), y.dtype)

    def number(self, x: Any) -> Any:
        return x

    def reads(self, x: Any) -> bool:
        return cuda.is_aligned(x)

    def run(self, calls: Sequence[Call]) -> None:
        devices.require(calls[0].caller)
        with exact(), driver.driver().on(self.device):
            for run in self.prepare(calls):
                run()

    def prepare(self, calls: Sequence[Call]) -> list[Callable[[], None]]:
        for call in calls:
            if call.target is None:
                call.target = cuda.empty_like(call.source, call.rule.dst)
        return cuda_batches.launches(calls, self.device)

    def is_unchanged(self, call: Call) -> bool:
        # To look at bits there would mean to wait for the device.
        kind = call.source.dtype
        return kind is call.rule.dst and not (kind.packed or kind.family == "bool")

    def plan(self, call: Call) -> Any:
        source = call.source
        array = namespace(source.data).ndarray
        if type(source.data) is not array or type(source.array) not in (array, PackedArray):
            return None
        return cuda_plans.of_source(source, array, call.rule, FusedOps.of(call.fuse))

    def require(self, caller: str) -> None:
        devices.require(caller)

    def workspace(self, caller: str) -> Any:
        return cuda_workspace.Workspace(caller, self.device, kept=True)

    def stream(self, library: Library | None) -> int:
        stream = None if library is None else library.stream(self.device)
        if stream is not None:
            return stream
        with driver.driver().on(self.device):
            return driver.driver().stream()

    @contextlib.contextmanager
    def using(self, stream: int | None, owners: Iterable[Lent | None] = ()) -> Iterator[None]:
        assert stream is not None, "each device has one"
        with streams.on({self.device: stream}, owners), driver.driver().on(self.device):
            yield
