# SPDX-License-Identifier: Apache-2.0
"""A result as text, as JUnit's XML, as a page of HTML, and as JSON."""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from types import ModuleType
from typing import Any

from cast_conformance.compare import Verdict
from cast_conformance.conventions import FAULTS, OTHER
from cast_conformance.reader import manifest
from cast_conformance.run import Result

WHAT = {**FAULTS, **OTHER, "other": "other bits"}


def text(result: Result, every: bool = False) -> Iterator[str]:
    """The pairs by convention, then each that differs with its worst cases."""
    yield f"{result.title}: {result.version}"
    counts = Counter(verdict.convention for verdict in result.pairs.values() if not verdict.wrong)
    kinds = ", ".join(f"{count} as {name}" for name, count in counts.most_common())
    cases = sum(verdict.cases for verdict in result.pairs.values())
    yield f"  {len(result.pairs)} pairs, {cases:,} results, {result.seconds:.1f} s: {kinds or 'none'} exact,"
    yield f"  {len(result.wrong)} pairs differ, {len(result.refused)} are not there"
    for (src, dst), verdict in result.pairs.items():
        if verdict.wrong or every:
            yield f"{src} to {dst}: {summary(verdict)}"
            yield from (f"    {case}" for case in verdict.worst.values())


def summary(verdict: Verdict) -> str:
    if not verdict.wrong:
        return f"exact, {verdict.convention}"
    faults = "; ".join(f"{WHAT[name]} ({count:,})" for name, count in verdict.faults.items())
    return f"{verdict.wrong:,} of {verdict.cases:,} differ from {verdict.convention}: {faults}"


def differs(found: dict[str, Any]) -> bool:
    """Whether finite blocks of a format are not as in its table."""
    return any(found.get(what) for what in ("codes", "scales", "numbers")) or not found.get("global", True)


def block_text(title: str, blocks: dict[str, Any]) -> Iterator[str]:
    """A line for each block format."""
    yield f"{title}: {len(blocks)} block formats"
    for name, found in blocks.items():
        counts = [f"{found[what]:,} {what}" for what in ("codes", "scales", "numbers") if what in found]
        counts += [] if found.get("global", True) else ["the global scale"]
        special = "; those with infinity or NaN do" if found["special"] else ""
        yield f"  {name}: of {found['cases']:,} elements {' and '.join(counts)} differ{special}"
        if "first" in found:
            yield f"    {found['first']}"


def as_json(system: str, results: Iterable[Result], adapter: ModuleType) -> dict[str, Any]:
    """For the scoreboard: by mode, source and destination the convention, and where results differ more."""
    found: dict[str, Any] = {"lines": getattr(adapter, "LINES", None), "names": getattr(adapter, "NAMES", None)}
    found |= {"system": system, "version": adapter.version(), "modes": {}}
    modes = found["modes"]
    for result in results:
        rows: dict[str, dict[str, Any]] = {}
        for (src, dst), verdict in result.pairs.items():
            cell: Any = verdict.convention
            if verdict.wrong:
                cell = {
                    "convention": verdict.convention,
                    "cases": verdict.cases,
                    "wrong": verdict.wrong,
                    "faults": verdict.faults,
                    "worst": {n: [hex(c.code), hex(c.got), hex(c.wanted)] for n, c in verdict.worst.items()},
                }
            rows.setdefault(src, {})[dst] = cell
        cases = sum(verdict.cases for verdict in result.pairs.values())
        modes[result.mode] = {"cases": cases, "pairs": rows}
    measured = {"date": datetime.date.today().isoformat(), "machine": platform.machine()}
    return {"suite": manifest()["version"], **measured, **found}


def junit(results: Iterable[Result]) -> str:
    """A test suite for each mode, a test for each pair."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for result in results:
        count, wrong, refused = len(result.pairs) + len(result.refused), len(result.wrong), len(result.refused)
        head = f'name="{escape(result.title)}" tests="{count}" failures="{wrong}" skipped="{refused}"'
        lines.append(f'<testsuite {head} time="{result.seconds:.3f}">')
        for (src, dst), verdict in result.pairs.items():
            body = ""
            if verdict.wrong:
                detail = "\n".join(map(str, verdict.worst.values()))
                body = f'<failure message="{escape(summary(verdict))}">{escape(detail)}</failure>'
            lines.append(f'<testcase classname="{src}" name="{dst}">{body}</testcase>')
        for (src, dst), why in result.refused.items():
            skipped = f'<skipped message="{escape(why)}"/>'
            lines.append(f'<testcase classname="{src}" name="{dst}">{skipped}</testcase>')
        lines.append("</testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def html(results: Iterable[Result]) -> str:
    """A table of colours for each mode: rows are sources; point at a cell to read it."""
    names = list(manifest()["types"])
    style = "td{width:1.4em;height:1.4em}.ok{background:#2a7}.no{background:#c33}th{font:10px sans-serif}"
    parts = [f"<!doctype html><meta charset=utf-8><title>cast-conformance</title><style>{style}</style>"]
    for result in results:
        parts.append(
            f"<h2>{escape(result.title)}</h2><p>{escape(result.version)}: green is exact, red differs</p><table>"
        )
        parts.append("<tr><th>" + "".join(f'<th style="writing-mode:vertical-rl">{name}' for name in names))
        for src in names:
            parts.append(f"<tr><th>{src}")
            for dst in names:
                verdict = result.pairs.get((src, dst))
                kind = "" if verdict is None else " class=no" if verdict.wrong else " class=ok"
                words = "not there" if verdict is None else summary(verdict)
                parts.append(f'<td{kind} title="{src} to {dst}: {escape(words)}">')
        parts.append("</table>")
    return "\n".join([*parts, ""])
