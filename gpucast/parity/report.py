# SPDX-License-Identifier: Apache-2.0
"""The results of a run of the harness: one state for every pair, as text, as JSON and as an SVG picture."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Literal

from gpucast.core.dtypes import DType
from gpucast.core.version import __version__
from gpucast.parity.cases import NUMERIC, Pair, all_cases
from gpucast.parity.compare import CaseResult, Mismatch, describe

#: "equal": for every rule; "equal in part": for the rules that were tried.
State = Literal["equal", "equal in part", "differing", "not tried"]
#: "sample": a seeded part of the rules; "all": all chosen rules; "exhaustive": all chosen rules with all codes.
Mode = Literal["sample", "all", "exhaustive"]
MARKS: dict[State, str] = {"equal": "=", "equal in part": "-", "differing": "X", "not tried": "."}
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


class _Counts:
    """Sums over outcomes."""

    outcomes: Sequence[CaseResult]

    @property
    def elements(self) -> int:
        return sum(outcome.elements for outcome in self.outcomes)

    @property
    def wrong(self) -> int:
        return sum(outcome.wrong for outcome in self.outcomes)


@dataclass
class PairResult(_Counts):
    """The outcomes of one pair's cases."""

    src: DType
    dst: DType
    outcomes: list[CaseResult] = field(default_factory=list)

    @property
    def rules(self) -> int:
        """How many rules the pair has."""
        return len(all_cases([(self.src, self.dst)]))

    @property
    def state(self) -> State:
        if not self.outcomes:
            return "not tried"
        if self.wrong:
            return "differing"
        return "equal" if len(self.outcomes) == self.rules else "equal in part"


@dataclass
class ParityReport(_Counts):
    """A run. `date` is ISO text; `what` describes which codes of each type were tried."""

    backend: str
    device: str
    date: str
    seed: int
    seconds: float
    mode: Mode
    what: str
    #: The number of cases requested; `outcomes` has those that were tried, in the order of the plan.
    planned: int
    outcomes: Sequence[CaseResult]

    @cached_property
    def pairs(self) -> dict[Pair, PairResult]:
        """All pairs, in the order of the dtype table."""
        found = {(src, dst): PairResult(src, dst) for src in NUMERIC for dst in NUMERIC}
        for outcome in self.outcomes:
            found[outcome.case.rule.src, outcome.case.rule.dst].outcomes.append(outcome)
        return found

    @property
    def tried(self) -> list[PairResult]:
        return [pair for pair in self.pairs.values() if pair.outcomes]

    @property
    def first(self) -> Mismatch | None:
        """The first mismatch, in the order of the plan."""
        return next((outcome.first for outcome in self.outcomes if outcome.first is not None), None)

    def summary(self) -> str:
        """One line: how much was tried, and how much of it differs."""
        return (
            f"{len(self.outcomes):,} of {self.planned:,} rules tried, in {len(self.tried):,} pairs: "
            f"{self.elements:,} casts in {self.seconds:,.0f} s, {self.wrong:,} differ"
        )

    def text(self) -> str:
        """The grid and the summary; the names of the destinations stand upright above their columns."""
        width = max(len(dtype.name) for dtype in NUMERIC)
        states = {pair: result.state for pair, result in self.pairs.items()}
        heads = zip(*(f"{dtype.name:>{width}}" for dtype in NUMERIC), strict=True)
        lines = [
            f"gpucast parity: {self.backend} ({self.device}) against the reference",
            *(" " * (width + 5) + " ".join(letters) for letters in heads),
            *(
                f"{src.name:<{width}} {src.number or '-':>2}  {' '.join(MARKS[states[src, dst]] for dst in NUMERIC)}"
                for src in NUMERIC
            ),
        ]
        # Only the states that there are: a mark for "differing" would read as if something did.
        legend = ", ".join(f"{mark} {state}" for state, mark in MARKS.items() if state in states.values())
        return "\n".join([*lines, legend, f"tried: {self.what} (seed {self.seed})", self.summary()])

    def as_json(self) -> dict[str, Any]:
        return {
            "gpucast": __version__,
            "backend": self.backend,
            "device": self.device,
            "date": self.date,
            "mode": self.mode,
            "tried": self.what,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "rules_planned": self.planned,
            "rules": len(self.outcomes),
            "elements": self.elements,
            "wrong": self.wrong,
            "first": None if self.first is None else _as_json(self.first),
            "pairs": [_pair_as_json(pair) for pair in self.pairs.values()],
        }


def _pair_as_json(pair: PairResult) -> dict[str, Any]:
    return {
        "src": pair.src.name,
        "dst": pair.dst.name,
        "state": pair.state,
        "rules": len(pair.outcomes),
        "rules_of_pair": pair.rules,
        "elements": pair.elements,
        "wrong": pair.wrong,
        "mismatches": [_as_json(outcome.first) for outcome in pair.outcomes if outcome.first is not None],
    }


def _as_json(mismatch: Mismatch) -> dict[str, Any]:
    src, dst = mismatch.case.rule.src, mismatch.case.rule.dst
    return {
        "src": src.name,
        "dst": dst.name,
        "attributes": dict(mismatch.case.attributes),
        "index": mismatch.index,
        "input": describe(src, mismatch.bits),
        "wanted": describe(dst, mismatch.wanted),
        "got": describe(dst, mismatch.got),
    }


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
