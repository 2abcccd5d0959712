# SPDX-License-Identifier: Apache-2.0
"""The small kernels of a training step on a device: they adjust scales and select arrays without reading back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.packed import device_index
from gpucast.casting.cast import cast
from gpucast.casting.creation import empty_like
from gpucast.codegen.batch_kernel import BatchSource, Field, capacity_of, source_of, table_of, tiles_of
from gpucast.codegen.cast_kernel import KernelSource, kernel_file, kernel_source, options, prelude
from gpucast.codegen.spec import CastSpec, KernelSpec
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.gpu import driver
from gpucast.gpu.batch_on_gpu import Prepared
from gpucast.gpu.cast_on_gpu import address, is_contiguous

#: The types that the kernel of `adjust` reads and writes.
FLAG_TO_WORDS = resolve(dtype("BOOL"), dtype("UINT32"))
#: The fields of ``struct Choices`` of kernels/select.cu after its first member.
_CHOICES: tuple[Field, ...] = (("otherwise", np.uint64, True), ("chosen", np.uint64, False))


@dataclass(frozen=True)
class Adjustment:
    """``struct Adjustment`` of kernels/loss_scale.cu: the settings of a loss scale."""

    factor: float
    backoff: float
    least: float
    period: int

    def to_bytes(self) -> bytes:
        return struct.pack("<fffI", self.factor, self.backoff, self.least, self.period)


def adjust(state: Any, finite: Any, by: Adjustment) -> None:
    """Adjust a loss scale: `state` is a CuPy array, the words of ``struct LossScale``; `finite`: a byte there."""
    device = int(state.device.id)
    with driver.driver().on(device):
        kernel = driver.kernel(AdjustSpec(), device)
        kernel(finite.data.ptr, state.data.ptr, 1, by)


@dataclass(frozen=True)
class Rescaling:
    """``struct Rescaling`` of kernels/delayed_scaling.cu: the settings of delayed scales."""

    largest: float
    margin: float
    history: int
    power_of_two: bool

    def to_bytes(self) -> bytes:
        return struct.pack("<ffII", self.largest, self.margin, self.history, self.power_of_two)


def rescale(state: Any, tensors: int, by: Rescaling) -> None:
    """The scales of the next step: `state` is a CuPy array of words as kernels/delayed_scaling.cu describes it."""
    device = int(state.device.id)
    with driver.driver().on(device):
        driver.kernel(RescaleSpec(), device)(state.data.ptr, state.data.ptr, tensors, by)


def select(chosen: Any, triples: Sequence[tuple[Any, Any, Any]]) -> list[Any]:
    """For each triple (x, y, out) a copy of x if the byte `chosen` is not 0, else of y; one launch for all.

    x and y have equal shapes and dtypes, and all arrays are on one device. `out` (checked, or None) may be x or y.
    """
    device = device_index(chosen)
    assert device is not None
    with driver.driver().on(device):
        results = [out if out is not None and is_contiguous(out) else empty_like(x) for x, _, out in triples]
        dense = [(_dense(x), _dense(y), result) for (x, y, _), result in zip(triples, results, strict=True) if x.size]
        if dense:
            n = [x.nbytes for x, _, _ in dense]
            src, otherwise, dst = (
                np.array([address(array) for array in column], np.uint64) for column in zip(*dense, strict=True)
            )
            prepared = Prepared(SelectSpec, [0] * len(n), n, device, {})
            prepared.run({"src": src, "otherwise": otherwise, "dst": dst}, lambda begin: {"chosen": chosen.data.ptr})
        for i, (x, _, out) in enumerate(triples):
            if out is not None and out is not results[i]:
                results[i] = cast(results[i], x.dtype, out=out)
    return results


def _dense(x: Any) -> Any:
    """`x` itself if it is C-contiguous, else a contiguous copy."""
    return x if is_contiguous(x) else cast(x, x.dtype, out=empty_like(x))


@dataclass(frozen=True)
class AdjustSpec(KernelSpec[KernelSource]):
    """The kernel of `adjust`."""

    def source(self) -> KernelSource:
        return _state_kernel("adjust_loss_scale", "loss_scale.cu", 1, "Adjustment")


@dataclass(frozen=True)
class RescaleSpec(KernelSpec[KernelSource]):
    """The kernel of `rescale`."""

    def source(self) -> KernelSource:
        return _state_kernel("delayed_scaling", "delayed_scaling.cu", 32, "Rescaling")


def _state_kernel(name: str, file: str, threads: int, more: str) -> KernelSource:
    """A kernel over the state of scales, a thread for each."""
    return replace(
        kernel_source(FLAG_TO_WORDS),
        name=f"gpucast_{name}",
        kernel=kernel_file(file),
        tile=1,
        elements=1,
        threads=threads,
        more=f"gpucast::{more}",
    )


@dataclass(frozen=True)
class SelectSpec(KernelSpec[BatchSource]):
    """The kernel of `select`; its elements are bytes."""

    #: As in a `gpucast.codegen.batch_kernel.BatchSpec`.
    argument_bytes: int

    def source(self) -> BatchSource:
        return _select_source(self.argument_bytes)


@lru_cache
def _select_source(argument_bytes: int) -> BatchSource:
    kind = CastSpec(resolve(dtype("UINT8"), dtype("UINT8")))
    copy = source_of(kind)
    capacity = capacity_of(argument_bytes, *_CHOICES)
    name, choices = f"gpucast_select_{capacity}", f"Choices<{capacity}>"
    casts = (
        f"typedef CastRule<{options(kind.rule)}> {name}_rule;\n"
        f"typedef BatchSelect<UINT8, {name}_rule, {copy.tile}, {tiles_of(kind)}, {copy.threads}> {name}_0;\n}}\n"
    )
    return BatchSource(
        name=name,
        kinds=(kind,),
        prelude="\n".join([prelude(), *map(kernel_file, ("batch.cu", "select.cu"))]),
        structs=dict(copy.structs),
        kernel=f"namespace gpucast {{\n{casts}GPUCAST_BATCH({name}, {choices}, {copy.threads}, gpucast::{name}_0)\n",
        threads=copy.threads,
        table=table_of(capacity, *_CHOICES),
        more=f"gpucast::{choices}",
        capacity=capacity,
        elements=np.array([tiles_of(kind) * copy.tile * copy.threads]),
        tiles=np.array([copy.tile]),
    )
