# SPDX-License-Identifier: Apache-2.0
"""Statistics of a conversion: counts of losses, errors, and histograms of magnitudes. The statistics of pieces add up.

Counts of losses are exact. Errors take a hundred times as long as a cast, so large tensors are sampled. The sample is
made of runs of elements spread over the tensor, and does not depend on its division into pieces.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gpucast.arrays.chunks import spans
from gpucast.casting.cast import cast
from gpucast.casting.loss_counts import CastReport, relative
from gpucast.convert.losses import counts
from gpucast.core.dtypes import dtype
from gpucast.files.tensor import NDArray

#: Tensors up to this many elements are examined as a whole.
EXACT = 1 << 16
#: The elements of a run, and of how many elements each run is a sample.
_RUN, _OF = 1 << 10, 1 << 17
#: Pieces with scales are read back as a whole: one of so many, which is sampled as many times as densely.
_PIECES, _PIECE = 4, 1 << 20
#: A multiplier that spreads the runs over all columns (of the golden ratio).
_SPREAD = 2654435761
#: Elements that are examined at a time, so that their float64 values stay in the processor's cache.
_BLOCK = 1 << 15
#: The exponent field of a DOUBLE is 0 for zero and magnitudes below 2^-1022, and `_SPECIAL` for infinity and NaN.
_SPECIAL, _BIAS = 2047, 1023
_SUMS = ("examined", "compared", "relative", "signal", "noise", "largest")


def runs(total: int, start: int, size: int, share: int = 1) -> Iterator[slice]:
    """The elements to examine of `size` elements from index `start` on, of `total` in the tensor: slices from `start`.

    `share`: how many times as many as usual.
    """
    if total <= EXACT:
        yield slice(0, size)
        return
    step = _OF // share
    for index in range(start // step, -(-(start + size) // step)):
        # Groups of 4 begin on a byte, whatever the type.
        first = index * step + index * _SPREAD % (step - _RUN) // 4 * 4
        begin, end = max(first, start), min(first + _RUN, start + size, total)
        if begin < end:
            yield slice(begin - start, end - start)


def runs_of_piece(total: int, start: int, size: int) -> list[slice]:
    """As `runs`, for a piece that is read back as a whole if any of it is examined."""
    if total > EXACT and start // _PIECE % _PIECES:
        return []
    return list(runs(total, start, size, _PIECES))


@dataclass
class Histogram:
    """For each exponent e, how many values v have floor(log2(abs(v))) = e. Zeros, infinities and NaNs are separate.

    Magnitudes below 2^-1022 are counted under -1023.
    """

    counts: Counter[int] = field(default_factory=Counter)
    zero: int = 0
    inf: int = 0
    nan: int = 0

    def add(self, values: NDArray) -> None:
        """`values`: flat float64."""
        exponents = values.view(np.uint64) >> np.uint64(52) & np.uint64(_SPECIAL)
        numbers = np.bincount(exponents.view(np.int64), minlength=_SPECIAL + 1)
        if numbers[0]:
            zero = int(np.count_nonzero(values == 0))
            self.zero += zero
            numbers[0] -= zero
        if numbers[_SPECIAL]:
            nan = int(np.count_nonzero(np.isnan(values)))
            self.nan += nan
            self.inf += int(numbers[_SPECIAL]) - nan
            numbers[_SPECIAL] = 0
        self.counts.update({index - _BIAS: int(numbers[index]) for index in np.flatnonzero(numbers).tolist()})

    def join(self, other: Histogram) -> None:
        self.counts.update(other.counts)
        self.zero, self.inf, self.nan = self.zero + other.zero, self.inf + other.inf, self.nan + other.nan

    def as_json(self) -> dict[str, Any]:
        """The counts as a list: `counts[i]` belongs to the exponent `lowest` + i."""
        low, high = min(self.counts, default=0), max(self.counts, default=-1)
        counts = [self.counts.get(exponent, 0) for exponent in range(low, high + 1)]
        return {"lowest": low, "counts": counts, "zero": self.zero, "inf": self.inf, "nan": self.nan}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Histogram:
        counts = {document["lowest"] + i: number for i, number in enumerate(document["counts"]) if number}
        return Histogram(Counter(counts), document["zero"], document["inf"], document["nan"])


@dataclass
class Errors:
    """Sums over the elements that are finite before and after; for relative errors also not zero before."""

    #: The elements that were examined: all, or a sample.
    examined: int = 0
    compared: int = 0
    relative: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    #: None where only the errors are asked for.
    before: Histogram | None = None
    after: Histogram | None = None

    @staticmethod
    def of(detail: str) -> Errors:
        """For the `Detail` of a request."""
        return Errors(before=Histogram(), after=Histogram()) if detail == "all" else Errors()

    def add(self, before: NDArray, after: NDArray) -> None:
        """Flat float64 values of equal sizes."""
        self.examined += before.size
        if self.before is not None and self.after is not None:
            self.before.add(before)
            self.after.add(after)
        finite = np.isfinite(before) & np.isfinite(after)
        if not finite.all():
            before, after = before[finite], after[finite]
        size, error = np.abs(before), np.abs(after - before)
        self.compared += int(np.count_nonzero(size))
        # If squares overflow, the ratio is unknown (None).
        self.signal += float(np.dot(size, size))
        self.noise += float(np.dot(error, error))
        self.largest = max(self.largest, float(error.max(initial=0.0)))
        self.relative += float(relative(error, size).sum())

    def join(self, other: Errors) -> None:
        for name in _SUMS:
            merge = max if name == "largest" else operator.add
            setattr(self, name, merge(getattr(self, name), getattr(other, name)))
        for mine, others in ((self.before, other.before), (self.after, other.after)):
            if mine is not None and others is not None:
                mine.join(others)

    @property
    def mean_relative_error(self) -> float:
        return self.relative / self.compared if self.compared else 0.0

    @property
    def sqnr_db(self) -> float | None:
        """The signal-to-noise ratio in decibels; None without noise, or if the ratio is not finite."""
        if not (0 < self.noise < math.inf and 0 < self.signal < math.inf):
            return None
        return 10 * (math.log10(self.signal) - math.log10(self.noise))


@dataclass
class Statistics:
    """Statistics of a tensor: counts of all elements, and errors of the elements that were examined.

    `errors` is None unless asked for; then the report may lack the largest error, too.
    """

    report: CastReport = field(default_factory=CastReport)
    errors: Errors | None = None
    #: Results that are NaN, and that are infinite, whatever the sources were.
    nan: int = 0
    infinite: int = 0

    def examine(self, x: NDArray, y: NDArray, largest: float) -> None:
        """Add the errors of flat elements: before and after (of types that cast to DOUBLE), and the largest one."""
        self.report += CastReport(max_relative_error=largest)
        if self.errors is None or dtype(y.dtype).family == "string":
            return
        with np.errstate(all="ignore"):
            for part in spans(x.size, _BLOCK):
                self.errors.add(cast(x[part], "DOUBLE"), cast(y[part], "DOUBLE"))

    def add_special(self, nan: int, infinite: int) -> None:
        """Add the results that are NaN, and those that are infinite."""
        self.nan, self.infinite = self.nan + nan, self.infinite + infinite

    def join(self, other: Statistics) -> None:
        """Add the statistics of other elements, of the same kind."""
        self.report += other.report
        self.add_special(other.nan, other.infinite)
        if self.errors is not None and other.errors is not None:
            self.errors.join(other.errors)

    def as_record(self) -> dict[str, Any]:
        """The statistics for the journal; `from_record` restores them unchanged."""
        record: dict[str, Any] = {"report": asdict(self.report), "nan": self.nan, "infinite": self.infinite}
        if self.errors is not None:
            errors = self.errors
            sides = {"before": errors.before, "after": errors.after}
            record["errors"] = {
                **{name: getattr(errors, name) for name in _SUMS},
                **{side: one.as_json() for side, one in sides.items() if one is not None},
            }
        return record

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Statistics:
        errors = None
        if "errors" in record:
            saved = record["errors"]
            sides = [Histogram.from_json(saved[side]) for side in ("before", "after") if side in saved]
            errors = Errors(*(saved[name] for name in _SUMS), *sides)
        return Statistics(CastReport(**record["report"]), errors, record["nan"], record["infinite"])

    def as_json(self) -> dict[str, Any]:
        """The statistics for users' programs; infinite and unknown values are null."""
        known = counts.as_json(self.report) | {"results_nan": self.nan, "results_infinite": self.infinite}
        errors = self.errors
        if errors is None:
            return known
        if errors.before is None or errors.after is None:
            return known | {"sqnr_db": errors.sqnr_db}
        return known | {
            "examined": errors.examined,
            "mean_relative_error": counts.finite(errors.mean_relative_error),
            "max_absolute_error": counts.finite(errors.largest),
            "sqnr_db": errors.sqnr_db,
            "log2_magnitudes": {"before": errors.before.as_json(), "after": errors.after.as_json()},
        }
