# SPDX-License-Identifier: Apache-2.0
"""What a cast loses, told from the codes that it gave: far quicker than `cast_report` where nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from gpucast.casting.loss_counts import CastReport, magnitudes, nonzero_codes
from gpucast.casting.report import cast_report
from gpucast.core.dtypes import DType
from gpucast.cpu.chunks import spans
from gpucast.cpu.native.cast import CastStats
from gpucast.files.tensor import Array

#: Elements that are looked at while they are in the cache.
_BLOCK = 1 << 17


def count(
    x: Array, y: Array, src: DType, dst: DType, attributes: Mapping[str, Any], seen: CastStats | None = None
) -> CastReport:
    """The counts of ``cast_report(x, dst, **attributes)``; `y` is the result, and `seen` what a pass saw on the way to
    it. The largest error is not worked out.

    Among floats a result below the largest number of `dst` was rounded and no more: all that can be lost is that it is
    zero. Where that may not be all, `cast_report` looks at the elements.
    """
    if seen is not None and (told := told_by(seen, x.size, src, dst, attributes)) is not None:
        return told
    if not is_quick(src, dst):
        return cast_report(x, dst, **attributes)
    if _holds(dst, src) and attributes.get("overflow") is None:
        return CastReport(x.size, sum(nonzero_codes(magnitudes(x[part], src)) for part in spans(x.size, _BLOCK)))
    beyond = CastReport()
    zeros = zeroed = 0
    for part in spans(x.size, _BLOCK):
        before, after = x[part], y[part]
        fnuz = dst.specials == "fnuz" and (after.view(dst.code_numpy) == dst.nan_code).any()
        if fnuz or (not dst.has_nan and magnitudes(before, src).max() > src.max_code):
            # The NaN of the one would pass for zero, and in the other no NaN is left to see.
            beyond += cast_report(before, dst, **attributes)
            continue
        codes = magnitudes(after, dst)
        if codes.max() >= dst.max_code:
            edge = np.flatnonzero(codes >= dst.max_code)
            beyond += cast_report(before[edge], dst, **attributes)
        if codes.min() == 0:
            none = np.flatnonzero(codes == 0)
            # Few are picked out; of many all sources are looked at, the others being no zeros.
            few = none.size * 8 < codes.size
            sources = magnitudes(before[none] if few else before, src)
            kept = sources.size - nonzero_codes(sources)
            zeros += kept
            zeroed += none.size - kept
    elements = x.size - beyond.elements
    found = CastReport(elements, elements - zeros, underflowed=zeroed)
    return found + beyond if beyond.elements else found


def told_by(seen: CastStats, size: int, src: DType, dst: DType, attributes: Mapping[str, Any]) -> CastReport | None:
    """`count` of so many elements, where what was seen is enough to tell."""
    nonzero = size - seen.source_zeros
    if _holds(dst, src) and attributes.get("overflow") is None:
        return CastReport(size, nonzero)
    if seen.largest >= dst.max_code:
        return None
    return CastReport(size, nonzero, underflowed=seen.zeros - seen.source_zeros)


def is_quick(src: DType, dst: DType) -> bool:
    """Whether the counts come from the codes; else a few large pieces are counted sooner than many small ones."""
    return src.family == dst.family == "float" and src.specials != "fnuz"


@lru_cache
def _holds(dst: DType, src: DType) -> bool:
    """Whether a type has all values of another, its infinities and NaN included: nothing is lost."""
    specials = dst.has_inf >= src.has_inf and dst.has_nan >= src.has_nan
    digits = dst.mantissa_bits >= src.mantissa_bits
    return specials and digits and dst.max >= src.max and dst.value(1) <= src.value(1)
