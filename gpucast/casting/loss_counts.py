# SPDX-License-Identifier: Apache-2.0
"""Counts the losses of a cast: from values before and after, or from codes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import codes_of
from gpucast.core.dtypes import DType

NDArray = npt.NDArray[Any]


@dataclass(frozen=True)
class CastReport:
    """Counts over the elements of a cast. Add two reports to join them.

    `saturated`, `wrapped`, `infinite`, `nan`, `nan_lost` and `underflowed` count losses. A value that was only rounded
    is in none of them. `max_relative_error` is the worst rounding.
    """

    #: All elements, and those whose source is not zero (NaN and infinities included).
    elements: int = 0
    nonzero: int = 0
    #: Out of the destination's range after rounding, infinities included, and clamped to its largest or lowest value.
    saturated: int = 0
    #: Out of an integer destination's range: the low bits were kept (an infinity gives 0).
    wrapped: int = 0
    #: Results that are infinite where the source is not.
    infinite: int = 0
    #: Results that are NaN where the source is not.
    nan: int = 0
    #: Sources that are NaN where the result is a number.
    nan_lost: int = 0
    #: Results that are zero where the source is a number in range other than zero.
    underflowed: int = 0
    #: The largest abs(result - source) / abs(source) where both are finite and the source is not zero.
    max_relative_error: float = 0.0

    def __add__(self, other: CastReport) -> CastReport:
        if not isinstance(other, CastReport):
            return NotImplemented
        joined: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return CastReport(**joined, max_relative_error=max(self.max_relative_error, other.max_relative_error))

    @property
    def lost(self) -> int:
        """The sum of all counts of losses. Rounding is no loss."""
        return self.saturated + self.wrapped + self.infinite + self.nan + self.nan_lost + self.underflowed


# Pickles name the package, whichever module is imported first.
CastReport.__module__ = "gpucast"


#: The fields but the last one, which is no count.
_COUNTS = tuple(field.name for field in fields(CastReport))[:-1]


def count(
    before: NDArray,
    after: NDArray,
    outside: NDArray,
    *,
    overflow: str | None,
    difference: NDArray,
    weights: NDArray | None = None,
) -> CastReport:
    """The report of any float64 values `before` and `after`, of equal shapes; floating-point errors must be off.

    `outside`: where the value is beyond the largest or lowest one; where the result is finite all the same it counts as
    what `overflow` says, "saturate" or "wrap". `difference`: after less before; zeros where no error is asked for.
    `weights`: how often each element counts, if not once.
    """

    def total(mask: NDArray) -> int:
        return int(np.count_nonzero(mask) if weights is None else weights[mask].sum())

    number, nonzero = ~np.isnan(before), before != 0
    outside = outside & number
    infinite, nan = np.isinf(after), np.isnan(after)
    finite = ~(infinite | nan)
    compared = np.isfinite(before) & finite
    error = np.abs(difference[compared])
    out_of_range = total(outside & finite)
    return CastReport(
        elements=before.size if weights is None else int(weights.sum()),
        nonzero=total(nonzero),
        saturated=out_of_range if overflow == "saturate" else 0,
        wrapped=out_of_range if overflow == "wrap" else 0,
        infinite=total(infinite & ~np.isinf(before) & number),
        nan=total(nan & number),
        nan_lost=total(~number & ~nan),
        underflowed=total(number & nonzero & ~outside & (after == 0)),
        max_relative_error=float(relative(error, np.abs(before[compared])).max(initial=0.0)),
    )


def relative(error: NDArray, size: NDArray) -> NDArray:
    """Errors of values of these magnitudes as shares of them, written over `error`; 0 where the value is 0.

    `size` is written to. Floating-point errors must be off.
    """
    # Faster than to leave some out of a division, and most arrays have no zero. A NaN is no size above 0, either.
    if size.size and not size.min() > 0:
        size[size == 0] = np.inf
    return np.divide(error, size, out=error)


# ---- codes ----


def magnitudes(x: NDArray, row: DType) -> NDArray:
    """The codes of floats without their signs: they order as the magnitudes do, infinity and NaN above all numbers; the
    NaN of the FNUZ types alone is 0."""
    codes = codes_of(x, row.code_numpy)
    return np.asarray(codes & codes.dtype.type(row.code_mask & ~row.sign_code))
