# SPDX-License-Identifier: Apache-2.0
"""What the measurements of the host say, as Markdown. Every number is a ratio of times, below 1 being quicker."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Types between which most casts are.
EVERYDAY = (
    "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT8", "UINT8", "INT32", "INT64", "BOOL",
)  # fmt: skip
#: Ours, and the other.
COLUMNS = (
    ("cast", "astype"), ("cast, out=", "copyto"), ("cast_many", "astype"), ("tensor", "to"),
)  # fmt: skip
#: Elements, ways to cast, and the most that a pair should take of the other's time.
GOALS = tuple((size, COLUMNS[:2], 1.1) for size in (1_000, 100_000, 1_000_000, 16_000_000))
#: What is measured of everyday types in other forms.
FORMS = ("every second element", "transposed, out=")


@dataclass(frozen=True)
class HostMeasurement:
    """The time of a call of each side. Sides are missing where ml_dtypes or PyTorch lacks the pair."""

    src: str
    dst: str
    kind: str
    elements: int
    microseconds: dict[str, float]

    def ratio(self, column: tuple[str, str]) -> float:
        """The time of ours over the other's; NaN where one is missing."""
        ours, other = (self.microseconds.get(side, math.nan) for side in column)
        return ours / other


def table(rows: Sequence[HostMeasurement]) -> str:
    """A row per size: the median of casts between two everyday types, and the slowest."""
    everyday = [row for row in rows if row.src != row.dst and {row.src, row.dst} <= set(EVERYDAY)]
    forms = {form: [row for row in everyday if row.kind == form] for form in FORMS}
    everyday = [row for row in everyday if row.kind not in FORMS]
    lines = [
        "| Elements |" + "".join(f" {ours} / {other} |" for ours, other in COLUMNS),
        "|---:|" + "---|" * len(COLUMNS),
    ]
    for size in sorted({row.elements for row in everyday}):
        of_size = [row for row in everyday if row.elements == size]
        name = f"300 x {size // 300}" if any(row.kind == "300 arrays" for row in of_size) else f"{size:,}"
        lines.append(f"| {name} |" + "".join(f" {_cell(of_size, column)} |" for column in COLUMNS))
    for form, of_form in forms.items():
        if of_form:
            cells = [_cell(of_form, COLUMNS[0]), *["-"] * (len(COLUMNS) - 1)]
            lines.append(f"| {of_form[0].elements:,}, {form} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines)


def all_pairs(rows: Sequence[HostMeasurement]) -> Iterator[str]:
    """A line for each goal and way to cast: all pairs of types, the worse of both kinds of data."""
    for size, columns, goal in GOALS:
        for column in columns:
            worst = worst_ratios((row for row in rows if row.elements == size and row.kind not in FORMS), column)
            if worst:
                over = sorted((pair for pair in worst if worst[pair] > goal), key=lambda pair: -worst[pair])
                names = ", ".join(f"{src} to {dst} {worst[src, dst]:.2f}" for src, dst in over)
                median = statistics.median(worst.values())
                what = f"- {size:,} elements, {' / '.join(column)}, {len(worst)} pairs: median {median:.2f}"
                yield f"{what}, above {goal}: {len(over)}{names and f' ({names})'}"


def worst_ratios(rows: Iterable[HostMeasurement], column: tuple[str, str]) -> dict[tuple[str, str], float]:
    """For each pair the larger ratio of its rows, without those that lack a side."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        if not math.isnan(ratio := row.ratio(column)):
            found[row.src, row.dst] = max(ratio, found.get((row.src, row.dst), ratio))
    return found


def _cell(rows: Sequence[HostMeasurement], column: tuple[str, str]) -> str:
    worst = worst_ratios(rows, column)
    if not worst:
        return "-"
    src, dst = max(worst, key=lambda pair: worst[pair])
    return f"{statistics.median(worst.values()):.2f}, {src} to {dst} {worst[src, dst]:.1f}"
