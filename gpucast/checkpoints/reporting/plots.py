# SPDX-License-Identifier: Apache-2.0
"""The plots of a report as inline SVG; the page's style sheet colours them by class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpucast.core.dtypes import DType

_WIDTH, _HEIGHT, _LEGEND = 260, 96, 16
#: The smallest number of exponents that a histogram shows.
_LEAST = 12


def histogram(before: Mapping[str, Any], after: Mapping[str, Any], dtype: DType | None) -> str:
    """Magnitudes before (area) and after (line) by floor(log2); the height of a bar is the logarithm of its count.

    `before`, `after`: ``{"lowest": exponent of counts[0], "counts": [...]}``. Dashed lines mark the range of `dtype`.
    """
    ends = [(side["lowest"], side["lowest"] + len(side["counts"])) for side in (before, after) if side["counts"]]
    if not ends:
        return "<p class=none>no finite values but zero</p>"
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    spare = max(0, _LEAST - (high - low))
    low, high = low - spare // 2 - 1, high + (spare + 1) // 2 + 1
    scale = _WIDTH / (high - low)
    top = math.log1p(max(count for side in (before, after) for count in side["counts"]))
    size = f"0 0 {_WIDTH} {_HEIGHT + _LEGEND}"
    parts = [
        f'<svg class=histogram viewBox="{size}" role=img aria-label="magnitudes from 2^{low} to 2^{high}">',
        f'<path class=before d="{_outline(before, low, scale, top)}"/>',
        f'<path class=after d="{_outline(after, low, scale, top)}"/>',
    ]
    for exponent in _bounds(dtype):
        if low <= exponent <= high:
            x = _number((exponent - low) * scale)
            parts.append(f'<path class=bound d="M{x} 0V{_HEIGHT}"/>')
    parts.append(f'<path class=axis d="M0 {_HEIGHT}H{_WIDTH}"/>')
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if (high - low) / step <= 7)
    for exponent in range(-(-low // step) * step, high + 1, step):
        x = (exponent - low) * scale
        if 12 <= x <= _WIDTH - 12:
            power = f"2<tspan class=power dy=-4>{exponent}</tspan>"
            parts.append(f"<text class=middle x={_number(x)} y={_HEIGHT + 13}>{power}</text>")
    return "".join([*parts, "</svg>"])


def _outline(side: Mapping[str, Any], low: int, scale: float, top: float) -> str:
    """The outline of the bars, beginning and ending on the axis."""
    if not side["counts"]:
        return ""
    path = [f"M{_number((side['lowest'] - low) * scale)} {_HEIGHT}"]
    for place, count in enumerate(side["counts"], side["lowest"] + 1 - low):
        height = math.log1p(count) / top * (_HEIGHT - 6)
        path.append(f"V{_number(_HEIGHT - height)}H{_number(place * scale)}")
    return "".join([*path, f"V{_HEIGHT}"])


def _bounds(dtype: DType | None) -> list[int]:
    """The exponents of the smallest and largest magnitude of a floating type; empty for other types."""
    if dtype is None or not dtype.is_float or dtype.family == "string":
        return []
    smallest = min(dtype.value(code) for code in (1, 0) if dtype.value(code) > 0)
    return [math.frexp(float(smallest))[1] - 1, math.frexp(float(dtype.max))[1]]


def ratios(tensors: Sequence[Mapping[str, Any]]) -> str:
    """The signal-to-noise ratio of every tensor, in the given order from left to right; "" if none is known.

    Each tensor has `name`, `sqnr_db` and `max_absolute_error`; `lost` says whether it lost more than the limit.
    """
    known: list[float] = [tensor["sqnr_db"] for tensor in tensors if tensor["sqnr_db"] is not None]
    if not known:
        return ""
    width, height, left, top = 960, 280, 56, 30
    low, high = math.floor(min(known) / 10) * 10, math.ceil(max(known) / 10) * 10
    high = max(high, low + 10)
    step = next(step for step in (10, 20, 50, 100, 200, 500, 1000, 10000) if (high - low) / step <= 7)
    scale = (height - top - 26) / (high - low)

    def y(value: float) -> float:
        return height - 26 - (value - low) * scale

    parts = [f'<svg class=ratios viewBox="0 0 {width} {height}" role=img aria-label="signal to noise of each tensor">']
    for value in range(low, high + 1, step):
        parts.append(f'<path class=grid d="M{left} {_number(y(value))}H{width}"/>')
        parts.append(f"<text class=end x={left - 8} y={_number(y(value) + 4)}>{value} dB</text>")
    exact = any(tensor["sqnr_db"] is None and tensor["max_absolute_error"] == 0 for tensor in tensors)
    if exact:
        parts.append(f'<path class=grid d="M{left} 10H{width}"/><text class=end x={left - 8} y=14>exact</text>')
    # Tensors with losses are drawn last, so that other dots do not hide them.
    for place, tensor in sorted(enumerate(tensors), key=lambda numbered: bool(numbered[1]["lost"])):
        ratio = tensor["sqnr_db"]
        if ratio is None and tensor["max_absolute_error"] != 0:
            continue
        x = left + 8 + (width - left - 16) * (place + 0.5) / len(tensors)
        shown = "exact" if ratio is None else f"{ratio:.1f} dB"
        kind = "dot lost" if tensor["lost"] else "dot"
        parts.append(
            f'<circle class="{kind}" cx={_number(x)} cy={_number(10 if ratio is None else y(ratio))} r=3.5>'
            f"<title>{escape(tensor['name'])}: {shown}</title></circle>"
        )
    parts.append(
        f"<text class=middle x={(width + left) // 2} y={height - 4}>tensors, in the order of their names</text>"
    )
    return "".join([*parts, "</svg>"])


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
