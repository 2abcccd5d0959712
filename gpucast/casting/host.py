# SPDX-License-Identifier: Apache-2.0
"""The engine of the host: numbers by the extension module or the reference, and text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpucast import casting, host
from gpucast.arrays.array import Array, result_like
from gpucast.arrays.libraries import Library
from gpucast.arrays.overlap import bounds_meet
from gpucast.arrays.packed import PackedArray, device_index
from gpucast.casting import plans
from gpucast.casting.engine import Call, Engine, Lengths
from gpucast.casting.plans import Kernels
from gpucast.core.checks import as_double
from gpucast.core.dtypes import DType
from gpucast.core.fuse import EMPTY
from gpucast.core.rule import CastRule
from gpucast.host import numbers

if TYPE_CHECKING:
    from gpucast.kernel.fused_kernel import FusedOps

NDArray = npt.NDArray[Any]


class _Memory:
    """The object that NumPy makes an array of. The array keeps it alive, and it keeps the owner alive."""

    def __init__(
        self, address: int, shape: Lengths, strides: Lengths | None, code: str, owner: object, readonly: bool
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "typestr": code, "shape": shape, "strides": strides, "data": (address, readonly),
        }  # fmt: skip


class HostEngine(Engine):
    """Arrays of NumPy, and PackedArrays over them."""

    has_text = waits = True

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

    def view(
        self, address: int, shape: Lengths, strides: Lengths | None, kind: DType, owner: object, readonly: bool = False
    ) -> Any:
        if 0 in shape:
            return np.empty(shape, kind.numpy)
        return np.asarray(_Memory(address, shape, strides, kind.code_numpy.str, owner, readonly)).view(kind.numpy)

    def take(self, x: Any) -> Any:
        return x if device_index(x) is None else casting.cuda.to_host(x)

    def received(self, y: Array, packed: bool) -> Array:
        x = self.take(y.array)
        return Array.of(x.get() if isinstance(x, PackedArray) and not packed else x, y.dtype)

    def number(self, x: Any) -> float:
        return as_double(x.reshape(())[()])

    def run(self, calls: Sequence[Call], library: Library | None = None) -> None:
        for run in self.prepare(calls):
            run()

    def prepare(self, calls: Sequence[Call]) -> list[Callable[[], None]]:
        waiting: list[bool | None] = []
        nbytes = 0
        for call in calls:
            waits: bool | None = False
            # Texts are read before their target is written; so are packed elements, which have equal layouts if they
            # share memory. A packed target shares none with another source, though their bounds may meet.
            if call.rule.is_text:
                waits = None
            elif call.target is None:
                call.target = self.empty_like(call.source, call.rule.dst)
            elif not (call.source.packed or call.target.packed):
                waits = bounds_meet(call.source.data, call.target.data)
                if waits:
                    nbytes = max(nbytes, call.target.data.nbytes)
            waiting.append(waits)
        # One memory for all whose target would be written before their source is read.
        return [partial(_cast, calls, waiting, np.empty(nbytes, np.uint8))]

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
        kind, how = type(call.source.array), (call.rule, call.fuse is not EMPTY, call.fuse.scale is not None)
        if kind is PackedArray:
            return plans.of_packed(*how)
        return plans.of_arrays(*how) if kind is np.ndarray and call.source.array.dtype.isnative else None

    def add_kernel(self, kernels: Kernels, rule: CastRule, ops: FusedOps, unpacked: bool = False) -> None:
        """The host has loops."""


def _cast(calls: Sequence[Call], waiting: Sequence[bool | None], room: NDArray) -> None:
    """`waiting`: whether a target is written when all is read; None for text."""
    for call, waits in zip(calls, waiting, strict=True):
        source, rule, target = call.source, call.rule, call.target
        if waits is None:
            call.target = host.text.apply(source, rule, target)
            continue
        assert target is not None, "memory has been allocated"
        # Without subclasses such as np.matrix, which change reshaping and assignment.
        x = source.array if source.packed else source.data
        if waits:
            order: Any = "F" if source.data.flags.fnc else "C"
            result = np.ndarray(source.shape, rule.dst.numpy, room, order=order)
            numbers.into(x, rule, result, call.fuse)
            target.data[...] = result
        else:
            numbers.into(x, rule, target.array if target.packed else target.data, call.fuse)


HOST = HostEngine()
