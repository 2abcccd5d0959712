# SPDX-License-Identifier: Apache-2.0
"""Counts what a cast loses from the codes of its result: much faster than `cast_report` if nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.arrays.chunks import spans
from gpucast.casting.cast_report import cast_report
from gpucast.casting.loss_counts import CastReport, magnitudes, nonzero_codes
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType
from gpucast.files.tensor import Array
from gpucast.host.files import CastStats

#: Elements that are examined at a time, so that they stay in the processor's cache.
_BLOCK = 1 << 17


def count(
    x: Array, y: Array, src: DType, dst: DType, attributes: Mapping[str, Any], stats: CastStats | None = None
) -> CastReport:
    """The counts of ``cast_report(x, dst, **attributes)``, without the largest error.

    `y` is the result of the cast, and `stats` holds statistics that the cast may have collected. Between floats a
    result below the largest number of `dst` was only rounded: the one possible loss is that it became zero. Elements
    that may have lost more are counted by `cast_report`.
    """
    if stats is not None and (report := from_stats(stats, x.size, src, dst, attributes)) is not None:
        return report
    if not is_quick(src, dst):
        return cast_report(x, dst, **attributes)
    if _holds(dst, src) and attributes.get("overflow") is None:
        return CastReport(x.size, sum(nonzero_codes(magnitudes(x[part], src)) for part in spans(x.size, _BLOCK)))
    examined = CastReport()
    zeros = zeroed = 0
    for part in spans(x.size, _BLOCK):
        before, after = x[part], y[part]
        fnuz = dst.specials == "fnuz" and (after.view(dst.code_numpy) == dst.nan_code).any()
        if fnuz or (not dst.has_nan and magnitudes(before, src).max() > src.max_code):
            # The NaN of FNUZ types has the magnitude of zero; in a type without NaN no NaN is left to see.
            examined += cast_report(before, dst, **attributes)
            continue
        codes = magnitudes(after, dst)
        if codes.max() >= dst.max_code:
            edge = np.flatnonzero(codes >= dst.max_code)
            examined += cast_report(before[edge], dst, **attributes)
        if codes.min() == 0:
            none = np.flatnonzero(codes == 0)
            # A few zeros are picked out. With many, all sources are counted, as only zeros among them give zero.
            few = none.size * 8 < codes.size
            sources = magnitudes(before[none] if few else before, src)
            kept = sources.size - nonzero_codes(sources)
            zeros += kept
            zeroed += none.size - kept
    elements = x.size - examined.elements
    report = CastReport(elements, elements - zeros, underflowed=zeroed)
    return report + examined if examined.elements else report


def from_stats(stats: CastStats, size: int, src: DType, dst: DType, attributes: Mapping[str, Any]) -> CastReport | None:
    """The result of `count` for `size` elements, if the statistics of the cast are enough for it; else None."""
    nonzero = size - stats.source_zeros
    if _holds(dst, src) and attributes.get("overflow") is None:
        return CastReport(size, nonzero)
    if stats.largest >= dst.max_code:
        return None
    return CastReport(size, nonzero, underflowed=stats.zeros - stats.source_zeros)


def is_quick(src: DType, dst: DType) -> bool:
    """Whether `count` works on codes. If not, a few large pieces are counted faster than many small ones."""
    return src.family == dst.family == "float" and src.specials != "fnuz"


@lru_cache
@exact()
def _holds(dst: DType, src: DType) -> bool:
    """Whether `dst` has all values of `src`, infinities and NaN included, so that nothing is lost."""
    specials = dst.has_inf >= src.has_inf and dst.has_nan >= src.has_nan
    digits = dst.mantissa_bits >= src.mantissa_bits
    return specials and digits and dst.max >= src.max and dst.value(1) <= src.value(1)
