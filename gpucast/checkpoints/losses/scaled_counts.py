# SPDX-License-Identifier: Apache-2.0
"""Counts what a quantized piece of a tensor loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpucast.arrays.chunks import spans
from gpucast.casting.cast import cast
from gpucast.casting.loss_counts import CastReport, count, magnitudes, nonzero_codes, relative
from gpucast.checkpoints.streaming.pieces import axis, dequantized
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format, Parts
from gpucast.files.tensor import Array
from gpucast.host.files import look
from gpucast.quantization import quantize_on_host
from gpucast.quantization.block_grid import BlockGrid

_FLOAT = dtype("FLOAT")
#: Elements that are examined at a time, so that their float64 values stay in the processor's cache.
_BLOCK = 1 << 15
#: The same for codes.
_CODES = 1 << 17


def counted(x: Array, parts: Parts, format: Format) -> CastReport:
    """The losses of a piece, counted as for a cast of its quotients, without the largest error."""
    scales = cast(parts.scales, "DOUBLE")
    nonzero = None if np.isnan(scales).any() else _nonzero_of_finite(x.reshape(-1))
    if nonzero is None:
        return replace(_of_all(_values(x), parts, format, dequantized(parts, format)), max_relative_error=0.0)
    if format.zero_points:
        saturated, kept = 0, _not_zero_points(parts, format)
    else:
        saturated, kept = _saturated(x, parts, format, scales), _nonzero_codes(parts.data, format.element)
    # Zeros always stay zeros, so every other zero is a loss.
    return CastReport(x.size, nonzero, saturated=saturated, underflowed=nonzero - kept)


def _values(x: Array) -> Array:
    """The values as a type that NumPy can compare."""
    return x if x.dtype in (np.float32, np.float64) else cast(x, "FLOAT")


def _nonzero_of_finite(values: Array) -> int | None:
    """How many flat values are not zero; None if one is infinite or NaN."""
    src = dtype(values.dtype)
    codes, nonzero = values.view(src.code_numpy), 0
    stats = look(codes, src.code_mask & ~src.sign_code) if src.bits <= 32 else None
    if stats is not None:
        return codes.size - stats[1] if stats[0] <= src.max_code else None
    for part in spans(codes.size, _CODES):
        block = magnitudes(codes[part], src)
        if block.max() > src.max_code:
            return None
        nonzero += nonzero_codes(block)
    return nonzero


def _not_zero_points(parts: Parts, format: Format) -> int:
    """How many codes differ from the zero point of their block, which stands for zero."""
    mask = np.uint8(format.element.code_mask)
    grid = BlockGrid.of(format, parts.data.shape, axis(format) % 2)
    codes = parts.data.view(np.uint8).reshape(grid.shape)
    zero = (parts.zero_points.view(np.uint8) & mask).reshape(grid.counts)
    equal = quantize_on_host.equal(codes, grid, zero)
    if equal is None:
        own = zero.reshape(-1)[grid.block_of(np.arange(codes.size))]
        equal = int(np.count_nonzero(codes.reshape(-1) == own))
    return int(codes.size) - equal


def _nonzero_codes(codes: Array, element: DType) -> int:
    """How many codes do not stand for zero."""
    raw, magnitude = (
        codes.view(np.uint8).reshape(-1),
        element.code_mask & ~(element.sign_code if element.family == "float" else 0),
    )
    stats = look(raw, magnitude)
    return int(np.count_nonzero(raw & magnitude)) if stats is None else raw.size - stats[1]


def _saturated(x: Array, parts: Parts, format: Format, scales: Array) -> int:
    """How many finite values became the largest number although they do not round to it. `scales` are DOUBLE."""
    if (format.scale is _FLOAT or format.rule == "up") and x.dtype != np.float64:
        # Here a block's largest magnitude divided by its scale exceeds the largest number by rounding errors alone.
        return 0
    d = scales if parts.global_scale is None else scales * np.float64(parts.global_scale)
    limits = np.asarray(float(format.element.max) * d * _rounding_limit(format.element))
    grid = BlockGrid.of(format, x.shape, axis(format) % 2)
    source = x.reshape(grid.shape)
    # Every value beyond the limit has the largest code, however it was rounded.
    beyond = quantize_on_host.beyond(source, grid, limits.reshape(grid.counts))
    if beyond is not None:
        return beyond
    edge = np.flatnonzero(_at_largest(parts.data, format.element))
    limits = limits.reshape(-1)[grid.block_of(edge)]
    return int(np.count_nonzero(np.abs(_values(x.reshape(-1)[edge])) > limits))


def _of_all(values: Array, parts: Parts, format: Format, restored: Array) -> CastReport:
    """As `counted`, for a piece with infinities or NaN."""
    report = CastReport()
    values, restored, codes = values.reshape(-1), restored.reshape(-1), parts.data.reshape(-1)
    with np.errstate(all="ignore"):
        for part in spans(values.size, _BLOCK):
            before, after = values[part].astype(np.float64), restored[part]
            outside = np.zeros(before.shape, bool)
            if not format.zero_points:
                outside = np.abs(before) > np.abs(after) * _rounding_limit(format.element)
                outside &= _at_largest(codes[part], format.element)
            report += count(before, after, outside, overflow="saturate")
    return report


def largest_error(before: Array, after: Array) -> float:
    """The largest relative error of flat values that are finite before and after, and not zero before."""
    largest, values = 0.0, _values(before)
    with np.errstate(all="ignore"):
        for part in spans(before.size, _BLOCK):
            x, y = values[part].astype(np.float64), after[part]
            error = relative(np.abs(y - x), np.abs(x))
            if not (finite := np.isfinite(x) & np.isfinite(y)).all():
                error = error[finite]
            largest = max(largest, float(error.max(initial=0.0)))
    return largest


def _at_largest(codes: Array, element: DType) -> Array:
    """Which codes stand for the largest number or its negative."""
    raw = codes.view(np.uint8)
    if element.family == "float":
        return np.asarray(magnitudes(raw, element) == element.max_code)
    largest, mask = int(element.max), element.code_mask
    positive: Array = raw & mask == largest
    return positive | (raw & mask == -largest & mask) if element.signed else positive


def _rounding_limit(element: DType) -> float:
    """The multiple of the largest number up to which values still round to it."""
    if element.family == "int":
        return 1 + 0.5 / float(element.max)
    largest = float(element.max)
    return 1 + (largest - float(element.value(element.max_code - 1))) / (2 * largest)
