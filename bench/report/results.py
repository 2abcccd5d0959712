# SPDX-License-Identifier: Apache-2.0
"""Results of the benchmark on a GPU: one file of JSON lines per GPU, date and code, which later runs continue.

A line is a session (the machine, the code, the time), a figure of it (a ceiling, the measurements of a case, a latency,
a first call, a state of the GPU, the calls of users), or the name of a task that begins or
ends. Lines are only appended.
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

from bench.cases.pairs import Measurement
from bench.revision import ROOT, code_digest, commit
from bench.timing.ceilings import Ceiling
from bench.timing.times import Times

FOLDER = ROOT / "bench" / "results"
#: Identifies a case: source, destination, elements, layout, and whether by calls or by a graph.
Key = tuple[str, str, int, str, str]
#: Kinds of lines that are kept as they are.
KINDS = ("latency", "first call", "state", "call")


@dataclass
class Results:
    """The contents of a file."""

    path: Path
    sessions: list[dict[str, Any]] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)
    #: By kind, as written: {"src", "dst", "n", "contender", "times", "p99"}, {"cache", "first", ...}, ...
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    #: Tasks that need not be done again, and why others failed.
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    #: Tasks that were begun, and are not known to have ended: they may have ended the process.
    begun: set[str] = field(default_factory=set)
    #: By case and contender; a later measurement replaces an earlier one.
    _rows: dict[tuple[Key, str], Measurement] = field(default_factory=dict)

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

    def begin(self, facts: dict[str, Any]) -> None:
        """Open a session."""
        self._write("session", {"date": _today(), "commit": commit(), "code": code_digest(), "facts": facts})

    def add_ceilings(self, ceilings: Iterable[Ceiling]) -> None:
        for one in ceilings:
            self._write("ceiling", asdict(one))

    def add_rows(self, rows: Iterable[Measurement]) -> None:
        """Add all measurements of one case as one line, so that they are stored together or not at all."""
        self._write("rows", {"rows": [measurement.as_json() for measurement in rows]})

    def add(self, kind: str, lines: Iterable[dict[str, Any]]) -> None:
        """Lines of one of `KINDS`."""
        for line in lines:
            self._write(kind, line)

    def start(self, task: str) -> None:
        self._write("begin", {"task": task})

    def end(self, task: str, failed: str = "") -> None:
        """A task is done, or failed for a reason: then it is tried again by the next run."""
        self._write("done", {"task": task, "failed": failed})

    def _write(self, kind: str, entry: dict[str, Any]) -> None:
        text = json.dumps({"kind": kind, **entry}, separators=(",", ":"))
        self._keep(kind, json.loads(text))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def _keep(self, kind: str, entry: dict[str, Any]) -> None:
        entry.pop("kind")
        if kind == "session":
            self.sessions.append(entry)
        elif kind == "ceiling":
            self.ceilings.append(Ceiling(entry["name"], entry["bytes"], Times(**entry["times"])))
        elif kind == "rows":
            for measurement in map(Measurement.from_json, entry["rows"]):
                self._rows[key(measurement), measurement.contender] = measurement
        elif kind == "begin":
            self.begun.add(entry["task"])
        elif kind == "done":
            self.begun.discard(entry["task"])
            self.failed.pop(entry["task"], None)
            if entry["failed"]:
                self.failed[entry["task"]] = entry["failed"]
            else:
                self.done.add(entry["task"])
        else:
            self.lines[kind].append(entry)

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


def key(measurement: Measurement) -> Key:
    return measurement.src, measurement.dst, measurement.n, measurement.layout, measurement.via


def read(path: Path) -> Results:
    """The results in a file. A line that was truncated by a crash is ignored."""
    results = Results(path)
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        results._keep(entry["kind"], entry)
    return results


def open_for(name: str, folder: Path = FOLDER) -> Results:
    """The results to continue for a GPU's name: those of the same code and GPU, else a new file."""
    folder.mkdir(parents=True, exist_ok=True)
    code = code_digest()
    # The digest distinguishes figures of changed code, whatever the commit is.
    for path in sorted(folder.glob(f"gpu-{slug(name)}-*-{code}.jsonl"), reverse=True):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            # A crash cut the last line off: what is appended begins a new one.
            path.write_bytes(data + b"\n")
        return read(path)
    return Results(folder / f"gpu-{slug(name)}-{_today()}-{code}.jsonl")


def slug(name: str) -> str:
    """The name of a GPU as part of the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def newest(folder: Path = FOLDER) -> Results | None:
    """The latest results that contain measurements; None if there are none."""
    found = [results for results in map(read, folder.glob("gpu-*.jsonl")) if results.sessions and results.rows]
    return max(found, key=lambda results: (results.sessions[-1]["date"], results.path.name), default=None)
