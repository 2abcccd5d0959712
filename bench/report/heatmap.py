# SPDX-License-Identifier: Apache-2.0
"""A picture of one number per pair of types: a row for every source, a column for every destination."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

#: The luminance of a cell from which numbers are dark instead of light.
_LIGHT = 0.55
#: Inches: a cell, the names on the left, names and title above, the colour bar with its label, what is left below.
_CELL, _LEFT, _ABOVE, _RIGHT, _BELOW = 0.36, 1.35, 1.75, 1.2, 0.15


def heatmap(
    path: str | Path,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    title: str,
    label: str,
    *,
    low: float,
    high: float,
    middle: float | None = None,
    good: Literal["high", "low"] = "high",
    form: str = "{:.2f}",
) -> None:
    """Write the picture in the format of the suffix of `path`, such as .svg or .png.

    `values`: a number for every row and column; NaN leaves the cell grey.
    `title`: what is shown; in further lines, which are smaller, the GPU, date and commit, or that it is an estimate.
    `label`: of the colour bar, with the unit.
    `low`, `high`: numbers outside have the colour of the end. Colours go from light to dark blue, which is good; with
    `middle` they turn there from orange to blue.
    `form`: of the number in each cell; "" for none.

    ValueError for values that do not fit the names, and for limits out of order.
    """
    if len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        sizes = f"{len(values)} x {sorted({len(row) for row in values})}"
        raise ValueError(f"heatmap: values are {sizes}; expected {len(rows)} x {len(columns)}, as the names are")
    if not (low < high and (middle is None or low < middle < high)):
        raise ValueError(f"heatmap: low={low}, middle={middle}, high={high} are out of order")
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap, Normalize, TwoSlopeNorm
    from matplotlib.figure import Figure

    # Blue and orange, which colour-blind readers can distinguish.
    ends = ["#e8590c", "#ffdcc2", "#d3e8f1", "#1c5f7d"] if middle is not None else ["#eef5f8", "#1c5f7d"]
    places = [0, 0.5, 0.5, 1] if middle is not None else [0, 1]
    points = list(zip(places, ends if good == "high" else ends[::-1], strict=True))
    colours = LinearSegmentedColormap.from_list("gpucast", points).with_extremes(bad="#d9d9d9")
    norm = Normalize(low, high) if middle is None else TwoSlopeNorm(middle, low, high)
    width, height = len(columns) * _CELL, len(rows) * _CELL
    total_width, total_height = _LEFT + width + _RIGHT, _ABOVE + height + _BELOW
    # Text stays text, and the same figures give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpucast", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(total_width, total_height))
        low_edge, tall = _BELOW / total_height, height / total_height
        axes = figure.add_axes((_LEFT / total_width, low_edge, width / total_width, tall))
        image = axes.imshow([list(row) for row in values], cmap=colours, norm=norm, aspect="auto")
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor", fontsize=8)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.set_xticks([number - 0.5 for number in range(len(columns) + 1)], minor=True)
        axes.set_yticks([number - 0.5 for number in range(len(rows) + 1)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(False)
        axes.text(-0.7, -0.9, "from, to:", ha="right", fontsize=8, color="#555555")
        if form:
            for down, row in enumerate(values):
                for right, value in enumerate(row):
                    if not math.isnan(value):
                        red, green, blue, _ = colours(norm(value))
                        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > _LIGHT
                        colour = "#222222" if light else "#ffffff"
                        axes.text(right, down, form.format(value), ha="center", va="center", fontsize=6, color=colour)
        bar = figure.add_axes(((_LEFT + width + 0.15) / total_width, low_edge, 0.18 / total_width, tall))
        figure.colorbar(image, cax=bar).set_label(label, fontsize=9)
        bar.tick_params(labelsize=8)
        first, _, rest = title.partition("\n")
        figure.text(0.2 / total_width, 1 - 0.3 / total_height, first, fontsize=13, fontweight="bold")
        figure.text(0.2 / total_width, 1 - 0.4 / total_height, rest, fontsize=9, va="top", color="#555555")
        suffix = Path(path).suffix.lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if suffix == ".svg" else None)
