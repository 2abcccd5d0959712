# SPDX-License-Identifier: Apache-2.0
"""The module's work for whole calls that quantize and dequantize arrays of the host (``kernels/host/quantize.hpp``)."""

from __future__ import annotations

import math

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve
from gpucast.host import loops
from gpucast.quantization import block_loops, hadamard_on_host, quantize_on_host
from gpucast.quantization.formats import Format, Hadamard
from gpucast.quantization.scale_orders import WORD, ScaleLayout, order, size

_FLOAT = dtype("FLOAT")


def producing(
    format: Format,
    src: DType,
    shape: tuple[int, ...],
    axis: int,
    *,
    hadamard: Hadamard | None = None,
    turned: bool = False,
    layout: ScaleLayout = "linear",
) -> bytes | None:
    """The work for a result of this shape: of an array whose last two axes are swapped first, if it is `turned`. None
    for calls that the module does not serve."""
    last = len(shape) - 1
    if hadamard is not None and (axis != last or not math.prod(shape)):
        return None
    how = quantize_on_host.quantizing(format, src if hadamard is None else _FLOAT, shape, axis)
    if how is None:
        return None
    matrices = (math.prod(shape[:-2]), shape[-1], shape[-2]) if turned else (0, 0, 0)
    return bytes(
        block_loops.Producing(
            block_loops.Quantizing.from_buffer_copy(how),
            block_loops.Turning(*matrices),
            _transforming(hadamard, src, math.prod(shape), False),
            order_of(layout, format.scales_shape(shape, axis), format.scale.code_numpy.itemsize),
        )
    )


def restoring(
    format: Format,
    dst: DType,
    shape: tuple[int, ...],
    axis: int,
    *,
    hadamard: Hadamard | None = None,
    layout: ScaleLayout = "linear",
) -> bytes | None:
    """The work back from a result of this shape. None for calls that the module does not serve."""
    if hadamard is not None and axis != len(shape) - 1:
        return None
    how = quantize_on_host.dequantizing(format, dst if hadamard is None else _FLOAT, shape, axis)
    if how is None:
        return None
    casts = hadamard is not None and dst is not _FLOAT
    work = block_loops.Restoring(
        block_loops.Dequantizing.from_buffer_copy(how),
        _transforming(hadamard, _FLOAT, math.prod(shape), True),
        order_of(layout, format.scales_shape(shape, axis), format.scale.code_numpy.itemsize),
        dst.code_numpy.itemsize,
        casts,
    )
    return bytes(work) + loops.plain(resolve(_FLOAT, dst))


def _transforming(hadamard: Hadamard | None, src: DType, size: int, inverse: bool) -> block_loops.Transforming:
    if hadamard is None:
        return block_loops.Transforming()
    return block_loops.Transforming.from_buffer_copy(hadamard_on_host.transforming(hadamard, src, size, inverse))


def order_of(layout: ScaleLayout, scales: tuple[int, ...], itemsize: int) -> block_loops.OrderOfScales:
    """How scales of this shape lie in a layout."""
    if layout == "linear":
        return block_loops.OrderOfScales()
    row = order(layout)
    rows, columns = math.prod(scales[:-1]), scales[-1]
    whole = row.padded(rows, columns, itemsize)
    split = row.tiles(whole[0], whole[1] * itemsize // WORD)
    steps, step = [0] * len(split), 1
    for dimension in reversed(row.axes):
        steps[dimension], step = step, step * split[dimension]
    # A row of a tile has at most three digits.
    lengths, strides = ((*[1] * (3 - len(some) + 1), *some[:-1]) for some in (split, steps))
    return block_loops.OrderOfScales(
        size(scales, layout, itemsize) * itemsize, rows, columns * itemsize,
        block_loops.Triple3.of(lengths), block_loops.Triple3.of(strides), steps[-1],
    )  # fmt: skip
