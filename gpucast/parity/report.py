# SPDX-License-Identifier: Apache-2.0
"""The results of a run of the harness: one state for every pair, as text, as JSON and as an SVG picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from gpucast.core.dtypes import DType
from gpucast.core.version import __version__
from gpucast.parity import pair_grid
from gpucast.parity.cases import NUMERIC, Pair, all_cases, all_pairs
from gpucast.parity.compare import CaseResult, Mismatch, describe
from gpucast.parity.pair_grid import Cell

#: "equal": for every rule; "equal in part": for the rules that were tried.
State = Literal["equal", "equal in part", "differing", "not tried"]
#: "sample": a seeded part of the rules; "all": all chosen rules; "exhaustive": all chosen rules with all codes.
Mode = Literal["sample", "all", "exhaustive"]
MARKS: dict[State, str] = {"equal": "=", "equal in part": "-", "differing": "X", "not tried": "."}
_FILLS: dict[State, str] = {
    "equal": pair_grid.BLUE,
    "equal in part": pair_grid.LIGHT_BLUE,
    "differing": pair_grid.ORANGE,
    "not tried": pair_grid.GREY,
}


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
    """The report of a run. `date` is ISO text; `what` says which codes of each type were tried."""

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
    """The picture as text. Every cell has a tooltip with the pair, its state and counts; pairs in `proved` have a
    dot."""
    cells = {(pair.src.name, pair.dst.name): pair for pair in report.pairs.values()}
    counts = Counter(pair.state for pair in report.pairs.values())
    legend = [(_cell(state), f"{state}: {counts[state]}") for state in _FILLS]
    if proved:
        legend.append((Cell(pair_grid.GREY, dotted=True), f"every rule proved for every input: {len(proved)}"))
    return pair_grid.svg(
        f"gpucast parity: {report.backend} against the reference, bit for bit",
        [f"{report.device}, {report.date}", report.summary(), f"tried: {report.what} (seed {report.seed})"],
        {names: _cell(pair.state, _tip(pair, names in proved), names in proved) for names, pair in cells.items()},
        legend,
    )


def _cell(state: State, tip: str = "", proved: bool = False) -> Cell:
    # A cross marks what differs for those who see no colours.
    return Cell(_FILLS[state], tip=tip, crossed=state == "differing", dotted=proved)


def _tip(pair: PairResult, proved: bool) -> str:
    tip = f"{pair.src.name} to {pair.dst.name}: {pair.state}"
    if pair.outcomes:
        tip += f", {len(pair.outcomes)} of {pair.rules} rules, {pair.elements:,} casts, {pair.wrong:,} differ"
    return tip + ", proved for every input" * proved


def proved_pairs(certificates: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The names of the pairs whose every rule is proved by each certificate."""
    found: list[set[tuple[str, str]]] = []
    for one in certificates:
        counts = Counter((proof["src"], proof["dst"]) for proof in one["proofs"] if proof["verdict"] == "proved")
        rules = Counter((case.rule.src.name, case.rule.dst.name) for case in all_cases(all_pairs()))
        found.append({pair for pair, count in rules.items() if counts[pair] == count})
    return set.intersection(*found) if found else set()
