# SPDX-License-Identifier: Apache-2.0
"""A picture of one number per pair of types: a row for every source, a column for every destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from gpucast.parity.pair_grid import BLUE, LIGHT_BLUE, LIGHT_ORANGE, ORANGE, Cell, svg


def heatmap(
    values: Mapping[tuple[str, str], float],
    title: str,
    notes: Sequence[str],
    *,
    low: float,
    middle: float,
    high: float,
    good: Literal["high", "low"],
    form: str = "{:.2f}",
) -> str:
    """The picture as SVG. Cells without a value are grey.

    `values`: by the names of the source and the destination.
    `notes`: what the numbers are, with the unit; the GPU, date and commit, or that it is an estimate.
    `low`, `high`: numbers outside have the colour of the end. At `middle` colours turn from blue, which is good, to
    orange.
    `form`: of the numbers.
    """
    # From good to bad, whichever end that is.
    sides = [(ORANGE, LIGHT_ORANGE), (LIGHT_BLUE, BLUE)]
    below, above = sides if good == "high" else [(dark, light) for light, dark in reversed(sides)]

    def cell(value: float, tip: str = "") -> Cell:
        (first, last), start, end = (below, low, middle) if value < middle else (above, middle, high)
        share = min(max((value - start) / (end - start), 0.0), 1.0)
        return Cell(_mixed(first, last, share), form.format(value), tip)

    cells = {(src, dst): cell(value, f"{src} to {dst}") for (src, dst), value in values.items()}
    return svg(title, notes, cells, [(cell(value), "") for value in (low, (low + middle) / 2, middle, high)])


def _mixed(first: str, last: str, share: float) -> str:
    """A colour between two."""
    sides = zip(bytes.fromhex(first[1:]), bytes.fromhex(last[1:]), strict=True)
    return "#" + bytes(round(a + share * (b - a)) for a, b in sides).hex()
