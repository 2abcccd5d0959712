# SPDX-License-Identifier: Apache-2.0
"""The results of a GPU as Markdown and as a picture: speeds beside copies and rivals, including where we lose."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.cases.buffers import CONTIGUOUS
from bench.cases.case import Row
from bench.cases.contenders import COPY, OURS, SAME_RATIO
from bench.cases.pairs import COMMON, LARGE, LAYOUT_SIZE
from bench.report.heatmap import heatmap
from bench.report.markdown import table
from bench.report.results import Results
from bench.timing.times import verdict
from gpucast.core.dtypes import dtype

#: The goals of the project: shares of the copy kernel's speed, for types of whole bytes and for packed ones.
WHOLE, PACKED = 0.95, 0.90
#: The goals for layouts, as a share of the contiguous speed.
LAYOUT_GOALS = {"source off by one": 0.95, "destination off by one": 0.95, "both off by one": 0.95, "transposed": 0.80}
#: The stages whose cases stand in a table with all their rows.
LISTED = ("copies", "users", "calls", "quantize", "many")


@dataclass(frozen=True)
class Group:
    """The rows of one cast by name, of the last case that measured it: the later ones have more contenders."""

    rows: dict[str, Row]

    @property
    def ours(self) -> Row:
        return self.rows[OURS]

    @property
    def name(self) -> str:
        return f"{self.ours.src} to {self.ours.dst}"

    def speed_of(self, name: str) -> float:
        """Bytes per second of a row; 0 where it has no times."""
        return self.rows[name].speed if name in self.rows else 0.0

    @property
    def share(self) -> float:
        """Our speed as a share of a copy's; 0 if either is missing."""
        copy = self.speed_of(COPY)
        return self.ours.speed / copy if copy else 0.0

    @property
    def goal(self) -> float:
        return PACKED if dtype(self.ours.src).packed or dtype(self.ours.dst).packed else WHOLE

    def rivals(self) -> list[Row]:
        """The rivals that were timed, the quickest first."""
        return sorted((row for row in self.rows.values() if row.is_rival and row.times), key=lambda row: -row.speed)


def groups(results: Results, n: int | None = None, layout: str = CONTIGUOUS.name) -> list[Group]:
    """The casts of one size (of every size with None) in which we were timed, in the order of the file."""
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for rows in results.cases.values():
        first = rows[0] if rows else Row("", 0)
        if first.src and first.layout == layout and n in (None, first.n):
            found[first.src, first.dst, first.n] = {row.name: row for row in rows}
    return [Group(rows) for rows in found.values() if OURS in rows and rows[OURS].times]


def share_picture(results: Results) -> str:
    """The heat map of all pairs as SVG: our speed divided by that of a copy; "" without figures."""
    shares = {(group.ours.src, group.ours.dst): 100 * group.share for group in groups(results, LARGE) if group.share}
    if not shares:
        return ""
    notes = [
        f"% of our copy kernel in the same measurement; {LARGE:,} elements",
        f"{results.label}; goals: {WHOLE:.0%}, types below one byte {PACKED:.0%}",
    ]
    title = "gpucast: share of a copy's speed"
    return heatmap(shares, title, notes, low=50, middle=95, high=110, good="high", form="{:.0f}")


def markdown(results: Results) -> str:
    """Everything, for a file of its own."""
    sections = {
        "Common pairs": common_table(results, LARGE),
        "All pairs": "\n".join(f"- {line}" for line in [*pair_lines(results), *rival_lines(results, LARGE)]),
        "Layouts": layout_table(results),
        **{stage.capitalize(): case_table(results, stage) for stage in LISTED},
    }
    parts = [f"# gpucast on {results.label}", _facts(results)]
    parts += [f"## {name}\n\n{text}" for name, text in sections.items() if text]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> str:
    shown = {name: value for name, value in results.facts.items() if name not in ("name", "packages", "contenders")}
    shown |= results.facts.get("packages", {})
    clocks = [float(state["clocks.sm"]) for state in results.states if state.get("clocks.sm", "").isdecimal()]
    if clocks:
        shown["SM clock while measuring, MHz"] = f"{min(clocks):g} to {max(clocks):g}"
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def common_table(results: Results, n: int) -> str:
    """Common pairs of large arrays: speeds, shares of copies, and the best rival."""
    by_name = {group.name: group for group in groups(results, n)}
    common = [f"{src} to {dst}" for src, dst in COMMON]
    names = common if n == LARGE else [*by_name]
    chosen = [by_name[name] for name in names if name in by_name]
    if not chosen:
        return ""
    head = "From|To|us|GB/s|of a copy|of one of its ratio|Best rival|GB/s|Speed-up|Differ".split("|")
    rows = []
    for group in chosen:
        ours, best = group.ours, next(iter(group.rivals()), None)
        assert ours.times is not None
        shares = [_share(ours.speed, group.speed_of(name)) for name in (COPY, SAME_RATIO)]
        rival = ["none has it", "", ""]
        if best is not None:
            rival = [best.name + (" *" if best.wrong else ""), f"{best.speed / 1e9:,.0f}", _speed_up(ours, best)]
        time = [f"{ours.times.median * 1e6:,.1f}", f"{ours.speed / 1e9:,.0f}"]
        differ = f"{ours.wrong:,} of {ours.checked:,}"
        rows.append([ours.src, ours.dst, *time, *shares, *rival, differ])
    notes = [
        f"{n:,} elements; GB/s of bytes read and written; medians. A speed-up in brackets is no claim:",
        "the 5th to 95th percentiles overlap. Differ: results unlike the reference's, of those compared.",
    ]
    if any(row.wrong for group in chosen for row in group.rivals()[:1]):
        notes.append("\\* its results differ from the reference's for some inputs: out of range, NaN or subnormal.")
    return "\n".join([*notes, "", table(head, rows)])


def _share(speed: float, of: float) -> str:
    return f"{speed / of:.0%}" if of else "-"


def _speed_up(ours: Row, theirs: Row) -> str:
    assert ours.times is not None and theirs.times is not None
    ratio = f"{theirs.times.median / ours.times.median:.2f}"
    return f"({ratio})" if verdict(ours.times, theirs.times) == "same" else ratio


def pair_lines(results: Results) -> list[str]:
    """How many pairs reach the goals, which do not, and how many results differ."""
    found = groups(results, LARGE)
    lines = []
    for what, goal in (("types of whole bytes", WHOLE), ("packed types", PACKED)):
        chosen = sorted((group for group in found if group.goal == goal and group.share), key=lambda group: group.share)
        if not chosen:
            continue
        short = [group for group in chosen if group.share < goal]
        median = statistics.median(group.share for group in chosen)
        line = f"pairs of {what} at {goal:.0%} or more of the copy kernel: {len(chosen) - len(short)} of {len(chosen)}"
        line += f" (median {median:.0%}, lowest {chosen[0].share:.0%})"
        if short:
            line += ": short are " + ", ".join(f"{group.name} {group.share:.0%}" for group in short[:12])
            line += f" and {len(short) - 12} more" if len(short) > 12 else ""
        lines.append(line)
    ours = [row for row in results.rows() if row.is_ours]
    wrong, checked = sum(row.wrong for row in ours), sum(row.checked for row in ours)
    return [*lines, f"results that differ from the reference: {wrong:,} of {checked:,}"]


def rival_lines(results: Results, n: int) -> list[str]:
    """For each rival: the geometric mean of the speed-ups of large arrays, and the verdicts beyond 2^16 elements."""
    rivals: dict[str, list[tuple[Row, Row]]] = {}
    for group in groups(results):
        if group.ours.n > 1 << 16 or group.ours.n == n:
            for row in group.rivals():
                rivals.setdefault(row.name, []).append((group.ours, row))
    lines = []
    for name, pairs in rivals.items():
        ratios = [ours.speed / theirs.speed for ours, theirs in pairs if ours.n == n]
        if not ratios:
            continue
        words = [verdict(ours.times, theirs.times) for ours, theirs in pairs if ours.times and theirs.times]
        # Less than 3 % is within what one and the same GPU varies by.
        slower = [
            f"{ours.src} to {ours.dst} at {ours.n:,} ({theirs.speed / ours.speed:.2f} x)"
            for (ours, theirs), word in zip(pairs, words, strict=True)
            if word == "slower" and theirs.speed > 1.03 * ours.speed
        ]
        line = f"{statistics.geometric_mean(ratios):.2f} x {name} over its pairs (geometric mean); "
        line += f"faster in {words.count('faster')} of {len(words)} measurements, slower in {len(slower)}"
        lines.append(line + (f": {', '.join(slower[:12])}" if slower else ""))
    return lines


def layout_table(results: Results) -> str:
    """The cost of layouts: our speed over that of contiguous arrays, for the common pairs."""
    usual = {group.name: group.ours.speed for group in groups(results, LAYOUT_SIZE)}
    rows = []
    for name in dict.fromkeys(row.layout for row in results.rows("layouts") if row.layout != CONTIGUOUS.name):
        found = groups(results, LAYOUT_SIZE, name)
        ratios = sorted((group.ours.speed / usual[group.name], group.name) for group in found if group.name in usual)
        if ratios:
            goal = f"{LAYOUT_GOALS[name]:.0%}" if name in LAYOUT_GOALS else "-"
            median = statistics.median(ratio for ratio, _ in ratios)
            rows.append([name, f"{median:.0%}", f"{ratios[0][0]:.0%} ({ratios[0][1]})", goal])
    note = f"{LAYOUT_SIZE:,} elements; our speed over that of contiguous arrays."
    return f"{note}\n\n{table(['Layout', 'Median', 'Lowest', 'Goal'], rows)}" if rows else ""


def case_table(results: Results, *stages: str) -> str:
    """All rows of the cases of some stages."""
    cases = {name: rows for (stage, name), rows in results.cases.items() if stage in stages}
    head = ["Case", "Way", "us", "5th to 95th percentile", "us on the host", "GB/s", "Share", "Note"]
    return table(head, (line for name, rows in cases.items() for line in _lines(name, rows)))


def _lines(case: str, rows: Sequence[Row]) -> Iterable[list[str]]:
    for row in rows:
        note = row.problem or row.first
        if row.times is None:
            yield [case, row.name, *["-"] * 5, note]
            continue
        middle, low, high = (f"{1e6 * seconds:,.2f}" for seconds in (row.times.median, row.times.p5, row.times.p95))
        host = f"{1e6 * row.host:.1f}" if row.host else "-"
        speed = f"{row.speed / 1e9:,.1f}" if row.bytes else "-"
        yield [case, row.name, middle, f"{low} to {high}", host, speed, f"{row.share:.0%}" if row.share else "-", note]
