# SPDX-License-Identifier: Apache-2.0
"""The small kernels of a training step on a device: they adjust scales and select arrays without reading back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.packed import device_index
from gpucast.casting.cast import cast
from gpucast.casting.creation import empty_like
from gpucast.casting.cuda import address, is_contiguous
from gpucast.casting.cuda_launches import Tables
from gpucast.core.dtypes import dtype
from gpucast.core.rule import resolve
from gpucast.kernel import driver
from gpucast.kernel.batch_kernel import ARRAYS, Batch, Kind, capacity_of, one_table
from gpucast.kernel.cast_kernel import PARTS, options
from gpucast.kernel.fields import Fields
from gpucast.kernel.kernel import Kernel, array_and

#: The settings of a loss scale.
ADJUSTMENT = Fields("Adjustment", (("factor", "float"), ("backoff", "float"), ("least", "float"), ("period", "u32")))
#: The settings of delayed scales.
RESCALING = Fields(
    "Rescaling", (("largest", "float"), ("margin", "float"), ("history", "u32"), ("power_of_two", "u32"))
)
#: Each array of `arrays.src` where the byte `chosen` is not 0, else that of `otherwise`; n counts bytes.
CHOICES = Fields(
    "Choices",
    (("arrays", ARRAYS), ("otherwise", "const u8*", "Capacity"), ("chosen", "const u8*")),
    "Capacity",
)

#: A thread for each state.
ADJUST = Kernel(
    "gpucast_adjust_loss_scale", (*PARTS, ADJUSTMENT, "loss_scale.cu"), (), "", 1, array_and(ADJUSTMENT)
)  # fmt: skip
RESCALE = Kernel(
    "gpucast_delayed_scaling", (*PARTS, RESCALING, "delayed_scaling.cu"), (), "", 32, array_and(RESCALING)
)  # fmt: skip


def adjust(state: Any, finite: Any, factor: float, backoff: float, least: float, period: int) -> None:
    """Adjust a loss scale: `state` is a CuPy array, the words of ``struct LossScale``; `finite`: a byte there."""
    device = int(state.device.id)
    with driver.driver().on(device):
        given = ADJUSTMENT.pack(factor, backoff, least, period)
        driver.launch(ADJUST, device, finite.data.ptr, state.data.ptr, 1, given)


def rescale(state: Any, tensors: int, largest: float, margin: float, history: int, power_of_two: bool) -> None:
    """The scales of the next step: `state` is a CuPy array of words as kernels/delayed_scaling.cu describes it."""
    device = int(state.device.id)
    with driver.driver().on(device):
        given = RESCALING.pack(largest, margin, history, power_of_two)
        driver.launch(RESCALE, device, state.data.ptr, state.data.ptr, tensors, given)


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
            tables = Tables(select_kernel, [0] * len(n), n, device)
            tables.run({"src": src, "otherwise": otherwise, "dst": dst}, {"chosen": chosen.data.ptr})
        for i, (x, _, out) in enumerate(triples):
            if out is not None and out is not results[i]:
                results[i] = cast(results[i], x.dtype, out=out)
    return results


def _dense(x: Any) -> Any:
    """`x` itself if it is C-contiguous, else a contiguous copy."""
    return x if is_contiguous(x) else cast(x, x.dtype, out=empty_like(x))


@lru_cache
def select_kernel(argument_bytes: int) -> Batch:
    """The kernel of `select`; its elements are bytes. `argument_bytes`: as of `batch_kernel`."""
    byte = dtype("UINT8")
    kind = Kind(resolve(byte, byte))
    capacity, copy = capacity_of(argument_bytes, CHOICES), kind.alone
    name = f"gpucast_select_{capacity}"
    sizes = f"{copy.tile}, {kind.tiles}, {copy.threads}"
    line = (
        f"namespace gpucast {{\ntypedef CastRule<{options(kind.rule)}> {name}_rule;\n"
        f"typedef BatchSelect<UINT8, {name}_rule, {sizes}> {name}_0;\n}}\n"
        f"GPUCAST_BATCH({name}, {CHOICES.of(capacity).type}, {copy.threads}, gpucast::{name}_0)\n"
    )
    parts = (*PARTS, ARRAYS, "batch.cu", CHOICES, "select.cu")
    return Batch.of(Kernel(name, parts, (byte,), line, copy.threads, one_table(CHOICES, capacity)), capacity, [kind])
