# SPDX-License-Identifier: Apache-2.0
"""The module's work for whole calls that quantize and dequantize arrays of the host (``kernels/host/quantize.hpp``)."""

from __future__ import annotations

import math

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import resolve
from gpucast.host import loops
from gpucast.quantization import block_loops, hadamard_on_host, host_formulas
from gpucast.quantization import quantize_on_host as on_host
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format, Hadamard
from gpucast.quantization.scale_orders import WORD, ScaleLayout, order, size

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")


def quantizing(format: Format, src: DType, shape: tuple[int, ...], axis: int) -> bytes | None:
    """The module's work for `quantize` of finite arrays of that shape, to nearest (``kernels/host/quantizing.hpp``);
    None for calls that only `quantize_on_host` serves."""
    grid = BlockGrid.of(format, shape, axis)
    if src is _DOUBLE or not on_host.has_loops(grid) or not math.prod(shape):
        return None
    run, element, scale = on_host.loop_of(src, format), format.element, format.scale
    formulas = None if run is None else host_formulas.steps_of(format, src)
    if run is None or formulas is None:
        return None
    attributes = {"round_mode": "down" if format.rounds_down else "up"} if scale is _E8M0 else {}
    if format.has_float_scales:
        attributes = {"overflow": "saturate"}
    is_int, chooses = element.family == "int", format.rule == "4over6"
    is_random = not is_int and format.steps is None
    find, cast = block_loops.find, on_host.loop
    how = block_loops.Quantizing(
        *map(block_loops.Triple3.of, (grid.shape, grid.lengths, grid.counts)),
        src.code_numpy.itemsize, scale.code_numpy.itemsize, element.bits,
        find(f"{'Range' if format.two_sided else 'Largest'}_{src.name}"), find(run),
        cast(src, _DOUBLE), cast(_DOUBLE, scale, **attributes), cast(scale, _DOUBLE),
        cast(_DOUBLE, _FLOAT, overflow="saturate"),
        0 if scale is _E8M0 else 1 if format.has_float_scales else 2,
        0 if is_int else 3 if format.steps is not None else 1 if run.startswith("Near") else 2,
        format.two_sided, format.global_scale, format.zero_points,
        src.sign_code, src.max_code, format.smallest_scale_code,
        format.divisor, format.top_scale, float(element.max) - float(element.min), format.negative_weight,
        float(element.min), float(element.max), on_host.integers(format),
        find(f"divide_{src.name}") if is_random else 0, cast(_DOUBLE, element, rounding=STOCHASTIC) if is_random else 0,
        find(f"choose_{src.name}") if chooses else 0, block_loops.numbers_of(element if chooses else None), formulas,
    )  # fmt: skip
    return bytes(how)


def dequantizing(format: Format, to: DType, shape: tuple[int, ...], axis: int) -> bytes | None:
    """The module's work for `dequantize`; None for arrays without elements."""
    if not math.prod(shape):
        return None
    grid = BlockGrid.of(format, shape, axis)
    zero = 0 if format.zero_point is None else on_host.loop(format.zero_point, _DOUBLE)
    return bytes(
        block_loops.Dequantizing(
            *map(block_loops.Triple3.of, (grid.shape, grid.lengths, grid.counts)),
            format.scale.code_numpy.itemsize, format.element.bits, to.code_numpy.itemsize,
            on_host.loop(format.scale, _DOUBLE), zero, on_host.products(format, to),
        )
    )  # fmt: skip


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
    how = quantizing(format, src if hadamard is None else _FLOAT, shape, axis)
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
    how = dequantizing(format, dst if hadamard is None else _FLOAT, shape, axis)
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
