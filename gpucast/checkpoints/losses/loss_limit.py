# SPDX-License-Identifier: Apache-2.0
"""The limit on what a cast may lose, and the losses as text."""

from __future__ import annotations

import math
from typing import Any

from gpucast.casting.loss_counts import CastReport
from gpucast.core.errors import PrintableError

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
        "Scale the values into the range first, or give --allow-loss"
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
    error = report.max_relative_error
    counts = {field: getattr(report, field) for field in ("elements", "nonzero", *_WORDS)}
    return counts | {"max_relative_error": error if math.isfinite(error) else None}
