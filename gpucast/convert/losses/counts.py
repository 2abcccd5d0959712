# SPDX-License-Identifier: Apache-2.0
"""Counts the losses of casts and of quantized pieces, from statistics of the extension module if these are enough. Also
the limit on losses, and their text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.chunks import spans
from gpucast.casting import loss_counts
from gpucast.casting.cast import cast
from gpucast.casting.cast_report import cast_report
from gpucast.casting.loss_counts import CastReport, magnitudes, relative
from gpucast.convert.streaming.pieces import axis, dequantized
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.errors import PrintableError
from gpucast.files.tensor import NDArray
from gpucast.host.files import CastStats, look
from gpucast.quantization import quantize_on_host
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format, Parts

#: The share of a tensor's non-zero values that may be lost unless --allow-loss is given.
LIMIT = 0.01

_WORDS = {
    "saturated": "saturated",
    "wrapped": "wrapped",
    "infinite": "became infinite",
    "nan": "became NaN",
    "nan_lost": "were NaN and became numbers",
    "underflowed": "became zero",
}
_FLOAT = dtype("FLOAT")
#: Elements that are examined at a time, so that their float64 values stay in the processor's cache.
_BLOCK = 1 << 15


class TooMuchLost(PrintableError, ValueError):
    """A cast would lose more than `LIMIT` of a tensor."""


def check(caller: str, src: str, dst: str, report: CastReport) -> None:
    """TooMuchLost if the tensor `caller` loses more than `LIMIT` of its non-zero values."""
    if report.lost <= LIMIT * report.nonzero:
        return
    # Zeros count as lost if they become NaN (FLOAT8E8M0 without saturate).
    total, kind = (report.nonzero, "non-zero values") if report.lost <= report.nonzero else (report.elements, "values")
    raise TooMuchLost(
        f"{caller} from {src} to {dst} would lose {report.lost:,} of its {total:,} {kind} "
        f"({100 * report.lost / total:.1f} %): {words(report, zeros=False)}. Nothing was written. "
        "Give --scale for codes with scales, or --allow-loss to write what is left (of integers, --overflow saturate "
        "and --rounding nearest_even clamp and round)"
    )


def words(report: CastReport, zeros: bool = True) -> str:
    """The counts as text. NaN that became numbers are named only if there are any."""
    counts = [
        f"{getattr(report, field):,} {text}"
        for field, text in _WORDS.items()
        if getattr(report, field) or (zeros and field != "nan_lost")
    ]
    return ", ".join(counts)


def as_json(report: CastReport) -> dict[str, Any]:
    """The fields of a report for JSON; an infinite error is null."""
    counts = {field: getattr(report, field) for field in ("elements", "nonzero", *_WORDS)}
    return counts | {"max_relative_error": finite(report.max_relative_error)}


def finite(number: float) -> float | None:
    """A number for JSON, which has no infinity and no NaN."""
    return number if math.isfinite(number) else None


def unexpected(report: CastReport) -> CastReport:
    """The losses that should not occur in quantized tensors: small values of a block become zero, and some formats
    clamp the largest."""
    return replace(report, saturated=0, underflowed=0)


# ---- casts ----


def of_cast(
    x: NDArray, y: NDArray, src: DType, dst: DType, attributes: Mapping[str, Any], stats: CastStats | None = None
) -> CastReport:
    """The counts of ``cast_report(x, dst, **attributes)``; without the largest error where statistics tell them."""
    stats = _looked(x, y, src, dst) if stats is None else stats
    counts = None if stats is None else of_stats(stats, x.size, src, dst, attributes)
    return cast_report(x, dst, **attributes) if counts is None else counts


def _looked(x: NDArray, y: NDArray, src: DType, dst: DType) -> CastStats | None:
    """The statistics of a cast that did not count, between floats whose NaN is the largest code."""
    if not (src.family == dst.family == "float" and dst.has_nan and dst.bits <= 32):
        return None
    if "fnuz" in (src.specials, dst.specials):
        return None
    found = look(y.view(dst.code_numpy), dst.code_mask & ~dst.sign_code)
    if found is None:
        return None
    # A zero remains one: where no result is, no source is.
    return CastStats(*found, x.size - int(np.count_nonzero(magnitudes(x, src))) if found[1] else 0)


def of_stats(stats: CastStats, size: int, src: DType, dst: DType, attributes: Mapping[str, Any]) -> CastReport | None:
    """The counts of a cast of `size` elements among floats; None where its statistics do not tell them.

    A result below the largest number of `dst` was only rounded: the one possible loss is that it became zero.
    """
    nonzero = size - stats.source_zeros
    if _holds(dst, src) and attributes.get("overflow") is None:
        return CastReport(size, nonzero)
    if stats.largest >= dst.max_code:
        return None
    return CastReport(size, nonzero, underflowed=stats.zeros - stats.source_zeros)


@lru_cache
@exact()
def _holds(dst: DType, src: DType) -> bool:
    """Whether `dst` has all values of `src`, infinities and NaN included, so that nothing is lost."""
    specials = dst.has_inf >= src.has_inf and dst.has_nan >= src.has_nan
    digits = dst.mantissa_bits >= src.mantissa_bits
    return specials and digits and dst.max >= src.max and dst.value(1) <= src.value(1)


def special(y: NDArray, dst: DType) -> tuple[int, int]:
    """How many elements of a type are NaN, and how many infinite."""
    if not dst.is_float or dst.family == "string" or not (dst.has_nan or dst.has_inf):
        return 0, 0
    flat = y.reshape(-1)
    found = (
        None
        if "fnuz" in dst.specials or dst.bits > 32
        else look(flat.view(dst.code_numpy), dst.code_mask & ~dst.sign_code)
    )
    if found is not None and found[0] <= dst.max_code:
        return 0, 0
    nan = infinite = 0
    for part in spans(flat.size, _BLOCK):
        values = cast(flat[part], "DOUBLE")
        if not np.isfinite(values).all():
            nan, infinite = nan + int(np.isnan(values).sum()), infinite + int(np.isinf(values).sum())
    return nan, infinite


# ---- quantized pieces ----


def of_piece(x: NDArray, parts: Parts, format: Format) -> CastReport:
    """The losses of a piece, counted as for a cast of its quotients, without the largest error."""
    scales = cast(parts.scales, "DOUBLE")
    nonzero = None if np.isnan(scales).any() else _nonzero_of_finite(x.reshape(-1))
    kept = _kept(parts, format)
    if nonzero is None or kept is None:
        return _of_all(_values(x), parts, format, dequantized(parts, format))
    # Zeros always stay zeros, so every other zero is a loss.
    return CastReport(x.size, nonzero, _saturated(x, parts, format, scales), underflowed=nonzero - kept)


def _values(x: NDArray) -> NDArray:
    """The values as a type that NumPy can compare."""
    return x if x.dtype in (np.float32, np.float64) else cast(x, "FLOAT")


def _nonzero_of_finite(values: NDArray) -> int | None:
    """How many flat values are not zero; None if one is infinite or NaN."""
    src = dtype(values.dtype)
    codes = magnitudes(values, src) if src.bits > 32 else values.view(src.code_numpy)
    stats = look(codes, src.code_mask & ~src.sign_code) if src.bits <= 32 else None
    largest, zeros = (int(codes.max()), codes.size - np.count_nonzero(codes)) if stats is None else stats
    return codes.size - int(zeros) if largest <= src.max_code else None


def _kept(parts: Parts, format: Format) -> int | None:
    """The number of codes that do not stand for zero. None if no loop counts them."""
    element, raw = format.element, parts.data.view(np.uint8)
    if not format.zero_points:
        stats = look(raw.reshape(-1), element.code_mask & ~(element.sign_code if element.family == "float" else 0))
        return None if stats is None else raw.size - stats[1]
    grid = BlockGrid.of(format, raw.shape, axis(format))
    zero = (parts.zero_points.view(np.uint8) & np.uint8(element.code_mask)).reshape(grid.counts)
    equal = quantize_on_host.equal(raw.reshape(grid.shape), grid, zero)
    return None if equal is None else int(raw.size) - equal


def _saturated(x: NDArray, parts: Parts, format: Format, scales: NDArray) -> int:
    """How many finite values became the largest number although they do not round to it. `scales` are DOUBLE."""
    if format.zero_points or ((format.scale is _FLOAT or format.rule == "up") and x.dtype != np.float64):
        # Here a block's largest magnitude divided by its scale exceeds the largest number by rounding errors alone.
        return 0
    d = scales if parts.global_scale is None else scales * np.float64(parts.global_scale)
    limits = np.asarray(float(format.element.max) * d * _rounding_limit(format.element))
    grid = BlockGrid.of(format, x.shape, axis(format))
    # Every value beyond the limit has the largest code, however it was rounded.
    beyond = quantize_on_host.beyond(x.reshape(grid.shape), grid, limits.reshape(grid.counts))
    if beyond is not None:
        return beyond
    edge = np.flatnonzero(_at_largest(parts.data, format.element))
    limits = limits.reshape(-1)[grid.block_of(edge)]
    return int(np.count_nonzero(np.abs(_values(x.reshape(-1)[edge])) > limits))


def _of_all(values: NDArray, parts: Parts, format: Format, restored: NDArray) -> CastReport:
    """As `of_piece`, for any values and without the extension module."""
    report = CastReport()
    values, restored, codes = values.reshape(-1), restored.reshape(-1), parts.data.reshape(-1)
    with np.errstate(all="ignore"):
        for part in spans(values.size, _BLOCK):
            before, after = values[part].astype(np.float64), restored[part]
            outside = np.zeros(before.shape, bool)
            if not format.zero_points:
                outside = np.abs(before) > np.abs(after) * _rounding_limit(format.element)
                outside &= _at_largest(codes[part], format.element)
            report += loss_counts.count(before, after, outside, overflow="saturate", difference=np.zeros(before.shape))
    return report


def largest_error(before: NDArray, after: NDArray) -> float:
    """The largest relative error of flat values that are finite before and after, and not zero before."""
    x, y = _values(before).astype(np.float64), after
    with np.errstate(all="ignore"):
        error = relative(np.abs(y - x), np.abs(x))
        return float(error[np.isfinite(x) & np.isfinite(y)].max(initial=0.0))


def _at_largest(codes: NDArray, element: DType) -> NDArray:
    """Which codes stand for the largest number or its negative."""
    raw = codes.view(np.uint8)
    if element.family == "float":
        return np.asarray(magnitudes(raw, element) == element.max_code)
    largest, mask = int(element.max), element.code_mask
    positive: NDArray = raw & mask == largest
    return positive | (raw & mask == -largest & mask) if element.signed else positive


def _rounding_limit(element: DType) -> float:
    """The multiple of the largest number up to which values still round to it."""
    if element.family == "int":
        return 1 + 0.5 / float(element.max)
    largest = float(element.max)
    return 1 + (largest - float(element.value(element.max_code - 1))) / (2 * largest)
