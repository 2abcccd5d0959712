# SPDX-License-Identifier: Apache-2.0
"""Results of the benchmark on a GPU: one file of JSON lines per GPU, date and code, which later runs continue.

A line is a session (the machine, the code, the time), or a figure of it: a ceiling, the measurements of a case, a
latency, a first call, a state of the GPU. Lines are only appended.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.revision import ROOT, code_digest, commit
from bench.timing.ceilings import Ceiling
from bench.cases.pairs import Measurement
from bench.timing.times import Times

FOLDER = ROOT / "bench" / "results"

#: Identifies a case: source, destination, elements, layout, and whether by calls or by a graph.
Key = tuple[str, str, int, str, str]


@dataclass
class Results:
    """The contents of a file."""

    path: Path
    sessions: list[dict[str, Any]] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)
    #: By case and contender; a later measurement replaces an earlier one.
    _rows: dict[tuple[Key, str], Measurement] = field(default_factory=dict)
    #: As written: {"src", "dst", "n", "contender", "times", "p99"}, and {"cache", "first", ...}.
    latencies: list[dict[str, Any]] = field(default_factory=list)
    first_calls: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[Measurement]:
        return list(self._rows.values())

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.sessions[-1]["facts"]
        return found

    @property
    def label(self) -> str:
        """A label for tables and pictures: the GPU, the date and the commit."""
        last = self.sessions[-1]
        return f"{last['facts']['name']}, {last['date']}, commit {last['commit'] or last['code']}"

    @property
    def done(self) -> set[tuple[Key, str]]:
        """The cases and contenders that need not be measured again, because nothing of ours failed."""
        failed = {key(measurement) for measurement in self.rows if measurement.is_ours and measurement.problem}
        return {
            (key(measurement), measurement.contender) for measurement in self.rows if key(measurement) not in failed
        }

    def begin(self, facts: dict[str, Any]) -> None:
        """Open a session."""
        session = {"date": _today(), "commit": commit(), "code": code_digest(), "facts": facts}
        self.sessions.append(session)
        self._append([{"kind": "session", **session}])

    def add_ceilings(self, ceilings: Iterable[Ceiling]) -> None:
        ceilings = list(ceilings)
        self.ceilings += ceilings
        self._append({"kind": "ceiling", **asdict(one)} for one in ceilings)

    def add_rows(self, rows: Iterable[Measurement]) -> None:
        """Add all measurements of one case as one line, so that they are stored together or not at all."""
        rows = list(rows)
        self._keep(rows)
        self._append([{"kind": "rows", "rows": [measurement.as_json() for measurement in rows]}])

    def _keep(self, rows: Iterable[Measurement]) -> None:
        self._rows |= {(key(measurement), measurement.contender): measurement for measurement in rows}

    def add(self, kind: str, lines: Iterable[dict[str, Any]]) -> None:
        """Latencies, first calls or states."""
        lines = list(lines)
        getattr(self, _LISTS[kind]).extend(lines)
        self._append({"kind": kind, **line} for line in lines)

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def write_csv(self, path: Path) -> None:
        """Write the measurements as a CSV table, with seconds and bytes."""
        columns = ("src", "dst", "n", "layout", "via", "contender", "bytes", "checked", "wrong", "sets", "cold")
        times = ("median", "p5", "p95", "samples", "calls")
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*columns, *times, "problem", "device", "date", "commit"])
            last = self.sessions[-1]
            end = [last["facts"]["name"], last["date"], last["commit"]]
            for measurement in self.rows:
                measured = [getattr(measurement.times, name) if measurement.times else "" for name in times]
                writer.writerow(
                    [*(getattr(measurement, name) for name in columns), *measured, measurement.problem, *end]
                )


_LISTS = {"latency": "latencies", "first call": "first_calls", "state": "states"}


def key(measurement: Measurement) -> Key:
    return measurement.src, measurement.dst, measurement.n, measurement.layout, measurement.via


def read(path: Path) -> Results:
    """The results in a file. A line that was truncated by a crash is ignored."""
    results = Results(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    for line in lines[:-1]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        kind = entry.pop("kind")
        if kind == "session":
            results.sessions.append(entry)
        elif kind == "ceiling":
            results.ceilings.append(Ceiling(entry["name"], entry["bytes"], Times(**entry["times"])))
        elif kind == "rows":
            results._keep(map(Measurement.from_json, entry["rows"]))
        else:
            getattr(results, _LISTS[kind]).append(entry)
    return results


def open_for(name: str, folder: Path = FOLDER) -> Results:
    """The results to continue for a GPU's name: those of the same code and GPU, else a new file."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    code = code_digest()
    # The digest distinguishes figures of changed code, whatever the commit is.
    for path in sorted(folder.glob(f"gpu-{slug}-*-{code}.jsonl"), reverse=True):
        _complete_last_line(path)
        return read(path)
    return Results(folder / f"gpu-{slug}-{_today()}-{code}.jsonl")


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def _complete_last_line(path: Path) -> None:
    """End a line that was truncated by a crash, so that appended text begins a new line."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")


def newest(folder: Path = FOLDER) -> Results | None:
    """The latest results that contain measurements; None if there are none."""
    found = [results for results in map(read, folder.glob("gpu-*.jsonl")) if results.sessions and results.rows]
    return max(found, key=lambda results: (results.sessions[-1]["date"], results.path.name), default=None)
