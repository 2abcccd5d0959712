# SPDX-License-Identifier: Apache-2.0
"""The engine of the host: numbers by the extension module or the reference, and text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpucast import casting, host
from gpucast.arrays.array import Array, result_like
from gpucast.arrays.overlap import bounds_meet
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.casting import plans
from gpucast.casting.engine import Call, Engine
from gpucast.core.checks import as_double
from gpucast.core.dtypes import DType
from gpucast.core.fuse import EMPTY
from gpucast.host import numbers


class HostEngine(Engine):
    """Arrays of NumPy, and PackedArrays over them."""

    def empty(self, shape: tuple[int, ...], kind: DType, packs: bool = False) -> Any:
        if packs and kind.packed:
            return PackedArray(np.empty(kind.nbytes(math.prod(shape)), np.uint8), kind, shape)
        if kind.family == "string":
            return np.full(shape, "", dtype=object)
        return np.empty(shape, dtype=kind.numpy)

    def empty_like(self, source: Array, kind: DType) -> Array:
        array: Any
        if not source.packed:
            array = np.empty_like(source.data, kind.numpy, "K", False)
        elif kind.packed:
            array = PackedArray(np.empty(kind.nbytes(source.size), np.uint8), kind, source.shape)
        else:
            array = np.empty(source.shape, kind.numpy)
        return result_like(source, array, kind)

    def take(self, x: Any) -> Any:
        return x if device_index(x) is None else casting.cuda.to_host(x)

    def received(self, y: Array, packed: bool) -> Array:
        x = self.take(y.array)
        return Array.of(x.get() if isinstance(x, PackedArray) and not packed else x, y.dtype)

    def number(self, x: Any) -> float:
        return as_double(x.reshape(())[()])

    def prepare(self, calls: Sequence[Call]) -> list[Callable[[], None]]:
        results = [None if call.rule.is_text else self._memory(call) for call in calls]

        def cast() -> None:
            for call, result in zip(calls, results, strict=True):
                if result is None:
                    call.target = host.text.apply(call.source, call.rule, call.target)
                    continue
                numbers.into(call.source.plain, call.rule, result.plain, call.fuse)
                if call.target is None:
                    call.target = result
                elif result is not call.target:
                    call.target.data[...] = result.data

        return [cast]

    def _memory(self, call: Call) -> Array:
        """Where the module writes the numbers of a call: its target, or new memory where there is none, or where the
        source would be written before it is read."""
        source, target = call.source, call.target
        # Packed elements, which have equal layouts if they share memory, are read before they are written. A packed
        # target shares none with another source, though their bounds may meet.
        if target is None or not (source.packed or target.packed or not bounds_meet(source.data, target.data)):
            return self.empty_like(source, call.rule.dst)
        return target

    def is_unchanged(self, call: Call) -> bool:
        kind, x = call.source.dtype, call.source.data
        if kind is not call.rule.dst:
            return False
        if kind.family == "string":
            return bool(x.dtype == object) and all(type(text) is str for text in x.flat)
        if call.source.packed:
            used = call.source.size * kind.bits % 8
            return used == 0 or not x[-1] >> used
        if not x.dtype.isnative:
            return False
        if kind.family == "bool" or kind.packed:
            limit = 1 if kind.family == "bool" else kind.code_mask
            return x.size == 0 or int(x.view(np.uint8).max()) <= limit
        return True

    def plan(self, call: Call) -> Any:
        if type(call.source.array) is not np.ndarray or not call.source.array.dtype.isnative:
            return None
        return plans.of_arrays(call.rule, call.fuse is not EMPTY, call.fuse.scale is not None)


HOST = HostEngine()
