# SPDX-License-Identifier: Apache-2.0
"""Results of the benchmark on a GPU: one file of JSON lines per GPU, date and code, which later runs continue.

A line is a session (the machine, the code, the time), a state of the GPU, the name of a case that begins, or the rows
of a case that ended. Lines are only appended.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cases.case import Case, Row
from bench.revision import FOLDER, code_digest, commit


@dataclass
class Results:
    """The contents of a file; without a path they are kept in memory alone."""

    path: Path | None = None
    sessions: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    #: By stage and name: the rows of the cases that ended. A later measurement replaces an earlier one.
    cases: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    #: Cases that need not be measured again, and why others failed.
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    #: Cases that were begun, and are not known to have ended: they may have ended the process.
    begun: set[str] = field(default_factory=set)

    def rows(self, stage: str | None = None) -> list[Row]:
        """The rows of a stage, or of all."""
        return [row for (of, _), rows in self.cases.items() if stage in (None, of) for row in rows]

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.sessions[-1]["facts"]
        return found

    @property
    def label(self) -> str:
        """A label for tables and pictures: the GPU, the date and the commit."""
        last = self.sessions[-1]
        return f"{last['facts']['name']}, {last['date']}, commit {last['commit'] or last['code']}"

    def open_session(self, facts: dict[str, Any]) -> None:
        """A run begins."""
        self._write({"kind": "session", "date": _today(), "commit": commit(), "code": code_digest(), "facts": facts})

    def add_state(self, state: dict[str, Any]) -> None:
        """Readings of the GPU."""
        self._write({"kind": "state", **state})

    def begin(self, case: Case) -> None:
        """A case begins."""
        self._write({"kind": "begin", "case": case.name})

    def end(self, case: Case, rows: Sequence[Row], failed: str = "") -> None:
        """A case has ended. One that failed, for the reason that is given, is measured again by the next run."""
        made = [row.as_json() for row in rows]
        self._write({"kind": "case", "stage": case.stage, "case": case.name, "failed": failed, "rows": made})

    def _write(self, entry: dict[str, Any]) -> None:
        text = json.dumps(entry, separators=(",", ":"))
        self._keep(json.loads(text))
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def _keep(self, entry: dict[str, Any]) -> None:
        kind = entry.pop("kind")
        if kind == "session":
            self.sessions.append(entry)
        elif kind == "state":
            self.states.append(entry)
        elif kind == "begin":
            self.begun.add(entry["case"])
        else:
            name = entry["case"]
            self.cases[entry["stage"], name] = [Row.from_json(row) for row in entry["rows"]]
            self.begun.discard(name)
            self.failed.pop(name, None)
            if entry["failed"]:
                self.failed[name] = entry["failed"]
            else:
                self.done.add(name)


def read(path: Path) -> Results:
    """The results in a file. A line that was truncated by a crash is ignored."""
    results = Results(path)
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        results._keep(entry)
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
    found = [results for results in map(read, folder.glob("gpu-*.jsonl")) if results.sessions and results.cases]
    return max(found, key=lambda results: (results.sessions[-1]["date"], str(results.path)), default=None)
