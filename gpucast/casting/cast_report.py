# SPDX-License-Identifier: Apache-2.0
"""The losses of a cast: counts and the worst relative error."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import host, reference
from gpucast.arrays.bitpacking import codes_of
from gpucast.arrays.chunks import elements, spans
from gpucast.arrays.libraries import untraced
from gpucast.arrays.packed import PackedArray, as_array
from gpucast.casting import engines
from gpucast.casting.loss_counts import CastReport, count, relative
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rounding import STOCHASTIC, Rounding, mode_of
from gpucast.core.rule import CastRule, Options, OverflowKeyword, RoundMode, resolve
from gpucast.host import numbers
from gpucast.kernel import streams

NDArray = npt.NDArray[Any]

#: Elements that are cast at a time, so that a report takes little memory beyond x, and compared at a time: their
#: float64 values stay in the cache.
_CAST, _COMPARED = 1 << 17, 1 << 15
#: From this size on the elements of a type of 16 bits or fewer are counted by code, and each code is compared once.
_COUNTED = 1 << 13


@exact()
def cast_report(
    x: Any,
    to: Any,
    *,
    saturate: bool = True,
    round_mode: RoundMode = "up",
    opset: int | None = None,
    rounding: Rounding | None = None,
    overflow: OverflowKeyword | None = None,
) -> CastReport:
    """Count the losses of ``cast(x, to, ...)``, without keeping the result. A device array is copied to the host
    first.

    Arguments and errors as for `cast`. Casts to STRING and BOOL report no losses. Text is compared as the DOUBLE that
    it reads as. Text beyond DOUBLE's range counts as infinite.
    """
    options = Options(saturate, round_mode, opset, rounding, overflow, caller="cast_report")
    report: CastReport = untraced(_checked_report, x, to, options)
    return report


@exact()
def _checked_report(given: Any, to: Any, options: Options) -> CastReport:
    x = as_array(given, "cast_report")
    rule = resolve(dtype(x.dtype, caller="cast_report: x.dtype="), dtype(to, caller="cast_report: to="), options)
    if rule.rounding == STOCHASTIC:
        raise ValueError(f"cast_report: rounding={STOCHASTIC!r} has no report, for it depends on the random bits")
    engines.of_array(x).require("cast_report")
    with streams.visit(given):
        x = engines.to_host(x)
    if isinstance(x, PackedArray):
        x = x.get()
    return _report(x, rule)


cast_report.__module__ = "gpucast"


@exact()
def result_report(x: NDArray, y: NDArray, rule: CastRule) -> CastReport:
    """The report of flat elements whose casts `y` are known, as after stochastic rounding. A number beyond the largest
    counts as saturated where it would be after rounding to nearest."""
    total = CastReport()
    for part in spans(x.size, _COMPARED):
        total += _compare(x[part], rule, rule.src, y[part])
    return total


def _report(x: NDArray, rule: CastRule) -> CastReport:
    if rule.src.family == "string":
        y = host.text.parse(x, rule)
        if rule.dst.family in ("string", "bool"):
            return CastReport(elements=x.size)
        # "wide" is exact enough for the counts: thresholds are few-bit numbers.
        wide = dtype("DOUBLE")
        return _compare(host.text.parse(x, resolve(rule.src, wide)).reshape(-1), rule, wide, y.reshape(-1))
    if rule.src.bits <= 16 and x.size >= _COUNTED:
        return _by_code(x, rule)
    total = CastReport()
    for chunk in elements(x, _CAST):
        beyond: list[NDArray] = []
        if rule.dst.family in ("bool", "string"):
            beyond.append(chunk)
        else:
            after = _double(_cast(chunk, rule), rule.dst) if rule.dst.is_float else chunk
            for part in spans(chunk.size, _COMPARED):
                total += _compare_within(chunk[part], after[part], rule, beyond)
        if beyond:
            total += _compare(np.concatenate(beyond), rule, rule.src)
    return total


def _double(x: NDArray, row: DType) -> NDArray:
    """The values as float64: exact, except that 64-bit integers are rounded."""
    if row.bits >= 16:
        return x.astype(np.float64, copy=False)
    values = np.empty(x.shape, np.float64)
    numbers.into(x, resolve(row, dtype("DOUBLE")), values)
    return values


def _cast(x: NDArray, rule: CastRule) -> NDArray:
    y = np.empty(x.shape, rule.dst.numpy)
    numbers.into(x, rule, y)
    return y


def _by_code(x: NDArray, rule: CastRule) -> CastReport:
    row = rule.src
    counts = np.zeros(1 << max(8, row.bits), np.int64)
    for chunk in elements(x, _CAST):
        counts += np.bincount(codes_of(chunk, row.code_numpy), minlength=counts.size)
    found = np.flatnonzero(counts)
    codes = found.astype(row.code_numpy).view(row.numpy)
    return _compare(codes, rule, row, weights=counts[found])


def _compare_within(x: NDArray, after: NDArray, rule: CastRule, beyond: list[NDArray]) -> CastReport:
    """The report of the numbers within the destination's limits: they can only be rounded, which is soon counted. The
    others (in FLOAT8E8M0 zeros as well) are added to `beyond`. `after`: the results, where the destination is a float.
    """
    src, dst = rule.src, rule.dst
    integers = not (src.is_float or dst.is_float)
    before = x if integers and src.bits > 16 else _double(x, src)
    low, high = _limits(before.dtype, dst)
    outside: Any = slice(0, 0)
    # False for NaN, which is neither above nor below.
    if not (before.min() >= low and before.max() <= high):
        outside = np.flatnonzero(~((before >= low) & (before <= high)))
        if outside.size * 8 > x.size:
            beyond.append(x)
            return CastReport()
        beyond.append(x[outside])

    def nonzero(values: NDArray) -> int:
        return int(np.count_nonzero(values != 0)) - int(np.count_nonzero(values[outside]))

    size, kept = x.size - before[outside].size, nonzero(before)
    if integers:
        return CastReport(size, kept)
    if dst.family == "int":
        after = _whole(before, rule)
    error = relative(np.abs(_difference(x, before, after, None, src, dst)), np.abs(before))
    error[outside] = 0.0
    return CastReport(size, kept, underflowed=kept - nonzero(after), max_relative_error=float(error.max()))


def _limits(kind: np.dtype[Any], dst: DType) -> tuple[Any, Any]:
    """The least and the largest number of dtype `kind` that `dst` has, too, or nearly the largest."""
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return max(int(dst.min), int(limits.min)), min(int(dst.max), int(limits.max))
    high = float(dst.max)
    # The largest 64-bit integers round up to a power of two, which is out of range.
    return float(dst.min), high if high <= dst.max else float(np.nextafter(high, 0.0))


def _compare(
    x: NDArray, rule: CastRule, src: DType, y: NDArray | None = None, weights: NDArray | None = None
) -> CastReport:
    """The report of any elements. `y`: their casts, if known; `weights`: how often each counts, if not once."""
    dst = rule.dst
    before = _double(x, src)
    if dst.family in ("bool", "string"):
        if weights is None:
            return CastReport(x.size, int(np.count_nonzero(before)))
        return CastReport(int(weights.sum()), int(weights[before != 0].sum()))
    after = _double(_cast(x, rule) if y is None else y, dst)
    outside = _outside(x, before, src, rule)
    difference = _difference(x, before, after, outside, src, dst)
    # In a direction that does not lead away from zero, the largest number is the last.
    ends = dst.family == "float" and mode_of(rule.rounding).ties is None and rule.rounding != STOCHASTIC
    overflow = "saturate" if ends else rule.overflow
    return count(before, after, outside, overflow=overflow, difference=difference, weights=weights)


def _outside(x: NDArray, before: NDArray, src: DType, rule: CastRule) -> NDArray:
    """Where the rounded source is beyond the destination's finite values."""
    dst = rule.dst
    if src is dst:
        return np.zeros(x.shape, bool)
    if dst.family == "int":
        if src.bits == 64 and not src.is_float:
            return np.asarray((x > dst.max) | (x < dst.min))
        whole = _whole(before, rule)
        return np.asarray((whole >= float(int(dst.max) + 1)) | (whole < float(dst.min)))
    if dst.family == "e8m0":
        return np.asarray((before != 0) & ((before < dst.min) | (before > dst.max)))
    mode = mode_of("ties_to_even" if rule.rounding == STOCHASTIC else rule.rounding)
    if mode.ties is None:
        return np.abs(before) > float(dst.max)
    # The midpoint to where the next value would be.
    step = float(dst.max) - float(dst.value(dst.max_code - 1))
    limit = float(dst.max) + step / 2
    return np.abs(before) >= limit if mode.takes_upper(dst.max_code % 2 == 1) else np.abs(before) > limit


def _whole(numbers: NDArray, rule: CastRule) -> NDArray:
    """The integers that numbers are rounded to; infinities and NaN stay."""
    with np.errstate(invalid="ignore"):
        return np.copysign(reference.rounding.to_whole(np.abs(numbers), rule.rounding), numbers)


def _difference(
    x: NDArray, before: NDArray, after: NDArray, outside: NDArray | None, src: DType, dst: DType
) -> NDArray:
    """Result minus source. `outside` (None: nowhere) matters between integers alone."""
    if not src.is_float and not dst.is_float:
        # Integers in range are kept; float64 might not show it.
        return np.zeros(x.shape) if outside is None else np.where(outside, after - before, 0.0)
    if src.family == "int" and src.bits == 64:
        # Two exact halves: float64 alone would round the source away together with the error.
        high = x >> x.dtype.type(32) << x.dtype.type(32)
        return np.asarray((after - high.astype(np.float64)) - (x - high).astype(np.float64))
    return after - before
