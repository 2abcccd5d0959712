# SPDX-License-Identifier: Apache-2.0
"""What a cast loses, told from the codes that it gave: far quicker than `cast_report` where nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.dtypes import DType
from gpucast.files.tensor import Array
from gpucast.report import CastReport, cast_report

#: Elements that are looked at while they are in the cache.
_BLOCK = 1 << 16


def count(x: Array, y: Array, src: DType, dst: DType, attributes: dict[str, Any]) -> CastReport:
    """The counts of ``cast_report(x, dst, **attributes)``; `y` is the result. The largest error is not worked out.

    Among floats a result below the largest number of `dst` was rounded and no more: all that can be lost is that it is
    zero. Where that may not be all, `cast_report` looks at the elements.
    """
    if src.family != "float" or dst.family != "float" or src.specials == "fnuz":
        return cast_report(x, dst, **attributes)
    beyond = CastReport()
    zeros = zeroed = 0
    for start in range(0, x.size, _BLOCK):
        before, after = x[start : start + _BLOCK], y[start : start + _BLOCK]
        fnuz = dst.specials == "fnuz" and (after.view(dst.code_numpy) == dst.nan_code).any()
        if fnuz or (not dst.has_nan and _magnitudes(before, src).max() > src.max_code):
            # The NaN of the one would pass for zero, and in the other no NaN is left to see.
            beyond += cast_report(before, dst, **attributes)
            continue
        magnitudes = _magnitudes(after, dst)
        if magnitudes.max() >= dst.max_code:
            edge = np.flatnonzero(magnitudes >= dst.max_code)
            beyond += cast_report(before[edge], dst, **attributes)
        found = magnitudes.size - int(np.count_nonzero(magnitudes))
        if found:
            # Few are picked out; of many all sources are looked at, the others being no zeros.
            few = found * 8 < magnitudes.size
            sources = _magnitudes(before[magnitudes == 0] if few else before, src)
            kept = sources.size - int(np.count_nonzero(sources))
            zeros += kept
            zeroed += found - kept
    elements = x.size - beyond.elements
    return CastReport(elements, elements - zeros, underflowed=zeroed) + beyond


def _magnitudes(x: Array, row: DType) -> Array:
    """The codes without their signs: they order as the magnitudes do, infinity and NaN above all numbers; the NaN of
    the FNUZ types alone is 0."""
    codes = x.view(row.code_numpy)
    return np.asarray(codes & codes.dtype.type(row.code_mask & ~row.sign_code))
