# SPDX-License-Identifier: Apache-2.0
"""A picture of all pairs of types as SVG: a row for every source, a column for every destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gpucast.parity.cases import NUMERIC

#: Blue and orange, which colour-blind readers can distinguish, from good to bad; grey for unknown results.
BLUE, LIGHT_BLUE, LIGHT_ORANGE, ORANGE, GREY = "#2b7a9e", "#a9d1e0", "#ffdcc2", "#e8590c", "#ececec"
_CELL, _GAP, _LEFT, _LEGEND = 28, 2, 150, 140
_WIDTH = _LEFT + _CELL * len(NUMERIC) + 40
_STYLE = (
    "text { font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 11px; fill: #222 } "
    ".title { font-size: 18px; font-weight: 600 } .note { fill: #555 } "
    ".number { font-size: 9px; paint-order: stroke; stroke: #fff; stroke-width: 2px }"
)


@dataclass(frozen=True)
class Cell:
    """A square of the grid: its colour, its number, and its tooltip."""

    fill: str
    number: str = ""
    tip: str = ""
    crossed: bool = False
    dotted: bool = False


def svg(
    title: str, notes: Sequence[str], cells: Mapping[tuple[str, str], Cell], legend: Sequence[tuple[Cell, str]]
) -> str:
    """The picture as text. `cells`: by the names of both types; grey where there is none."""
    top = 150 + 17 * len(notes)
    rows = -(-len(legend) * _LEGEND // (_WIDTH - _LEFT))
    height = top + _CELL * len(NUMERIC) + 20 + 22 * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 30, title, "title"),
        *(_text(16, 50 + 17 * number, note, "note") for number, note in enumerate(notes)),
        _text(_LEFT - 8, top - 8, "from, to:", "note", 'text-anchor="end"'),
    ]
    for number, dtype in enumerate(NUMERIC):
        middle, y = number * _CELL + _CELL // 2 + 4, top - 8
        parts.append(_text(_LEFT - 8, top + middle, dtype.name, "", 'text-anchor="end"'))
        parts.append(_text(_LEFT + middle, y, dtype.name, "", f'transform="rotate(-60 {_LEFT + middle} {y})"'))
    for down, src in enumerate(NUMERIC):
        for right, dst in enumerate(NUMERIC):
            parts += _square(_LEFT + right * _CELL, top + down * _CELL, cells.get((src.name, dst.name), Cell(GREY)))
    per_row = (_WIDTH - _LEFT) // _LEGEND
    for number, (cell, text) in enumerate(legend):
        down, right = divmod(number, per_row)
        x, y = _LEFT + right * _LEGEND, top + _CELL * len(NUMERIC) + 10 + 22 * down
        parts += [*_square(x, y, cell), _text(x + _CELL + 4, y + 17, text)]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, style: str = "", more: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x}" y="{y}"{named}{more and " " + more}>{escape(text)}</text>'


def _square(x: int, y: int, cell: Cell) -> list[str]:
    side = _CELL - _GAP
    parts = ["<g>", f"<title>{escape(cell.tip)}</title>"] if cell.tip else ["<g>"]
    parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="3" fill="{cell.fill}"/>')
    if cell.crossed:
        low, high = 6, side - 6
        path = f"M{x + low} {y + low}L{x + high} {y + high}M{x + high} {y + low}L{x + low} {y + high}"
        parts.append(f'<path d="{path}" stroke="#ffffff" stroke-width="2.5" stroke-linecap="round"/>')
    if cell.dotted:
        parts.append(f'<circle cx="{x + side / 2}" cy="{y + side / 2}" r="3" fill="#ffffff" stroke="#222222"/>')
    if cell.number:
        parts.append(_text(x + side / 2, y + 17, cell.number, "number", 'text-anchor="middle"'))
    return [*parts, "</g>"]
