# SPDX-License-Identifier: Apache-2.0
"""The result grid as an SVG picture: a row for every source, a column for every destination."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from gpucast.parity.cases import NUMERIC
from gpucast.parity.report import PairResult, ParityReport, State

_CELL, _GAP, _LEFT, _TOP = 22, 2, 150, 200
_WIDTH, _HEIGHT = _LEFT + _CELL * len(NUMERIC) + 40, _TOP + _CELL * len(NUMERIC) + 60
#: Blue and orange, which colour-blind readers can distinguish; a cross marks the latter too.
_FILLS: dict[State, str] = {
    "equal": "#2b7a9e",
    "equal in part": "#a9d1e0",
    "differing": "#e8590c",
    "not tried": "#ececec",
}
_STYLE = (
    "text { font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 11px; fill: #222 } "
    ".title { font-size: 18px; font-weight: 600 } .note { fill: #555 }"
)


def svg(report: ParityReport, proved: Collection[tuple[str, str]] = ()) -> str:
    """The picture as text. Every cell has a tooltip with the pair, its state and counts; those of the pairs `proved`,
    by name, have a dot."""
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="{box}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(16, 30, f"gpucast parity: {report.backend} against the reference, bit for bit", "title"),
        _text(16, 50, f"{report.device}, {report.date}"),
        _text(16, 67, report.summary()),
        _text(16, 84, f"tried: {report.what} (seed {report.seed})", "note"),
    ]
    parts.append(f'<text x="{_LEFT - 8}" y="{_TOP - 8}" text-anchor="end" class="note">from, to:</text>')
    for number, dtype in enumerate(NUMERIC):
        middle = number * _CELL + _CELL / 2 + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{_TOP + middle}" text-anchor="end">{escape(dtype.name)}</text>')
        x, y = _LEFT + middle, _TOP - 8
        parts.append(f'<text x="{x}" y="{y}" transform="rotate(-60 {x} {y})">{escape(dtype.name)}</text>')
    for number, pair in enumerate(report.pairs.values()):
        down, right = divmod(number, len(NUMERIC))
        parts += _cell(_LEFT + right * _CELL, _TOP + down * _CELL, pair, (pair.src.name, pair.dst.name) in proved)
    parts += _legend(report, len(proved), _TOP + _CELL * len(NUMERIC) + 24)
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}"' + (f' class="{style}"' if style else "") + f">{escape(text)}</text>"


def _cell(x: float, y: float, pair: PairResult, proved: bool) -> list[str]:
    tip = f"{pair.src.name} to {pair.dst.name}: {pair.state}"
    if pair.outcomes:
        tip += f", {len(pair.outcomes)} of {pair.rules} rules, {pair.elements:,} casts, {pair.wrong:,} differ"
    if proved:
        tip += ", proved for every input"
    return ["<g>", f"<title>{escape(tip)}</title>", *_square(x, y, pair.state), *_dot(x, y) * proved, "</g>"]


def _dot(x: float, y: float) -> list[str]:
    middle = (_CELL - _GAP) / 2
    return [f'<circle cx="{x + middle}" cy="{y + middle}" r="3" fill="#ffffff" stroke="#222222"/>']


def _square(x: float, y: float, state: State) -> list[str]:
    side = _CELL - _GAP
    parts = [f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="3" fill="{_FILLS[state]}"/>']
    if state == "differing":
        low, high = 6, side - 6
        path = f"M{x + low} {y + low}L{x + high} {y + high}M{x + high} {y + low}L{x + low} {y + high}"
        parts.append(f'<path d="{path}" stroke="#ffffff" stroke-width="2.5" stroke-linecap="round"/>')
    return parts


def _legend(report: ParityReport, proved: int, y: float) -> list[str]:
    """Each state with the number of its pairs, and the dot of those that are proved."""
    parts, x = [], float(_LEFT)
    for state in _FILLS:
        count = sum(pair.state == state for pair in report.pairs.values())
        parts += [*_square(x, y - 15, state), _text(x + _CELL + 4, y, f"{state}: {count}")]
        x += 140
    if proved:
        parts += [*_dot(_LEFT, y + 6), _text(_LEFT + _CELL + 4, y + 20, f"every rule proved for every input: {proved}")]
    return parts
