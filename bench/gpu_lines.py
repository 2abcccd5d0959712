# SPDX-License-Identifier: Apache-2.0
"""The log that a part of a run on a GPU writes while it works: what it plans, and the result of each case.

One JSON object per line, flushed at once, so that a part that is stopped leaves all its results:

    {"kind": "session", ...}             on what, when and by which code the lines behind it were found
    {"kind": "plan", "names": [...]}     the cases that are to come
    {"kind": "begin", "name": ...}       this one is under way
    {"kind": "done", "name": ..., "failed": "" or why, ...}
"""

from __future__ import annotations

import datetime
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.revision import code_digest, commit

#: The environment variable in which a run hands the facts of its GPU to the processes that it starts, as JSON.
FACTS = "GPU_FACTS"


def session() -> dict[str, Any]:
    """GPU, driver and CUDA as detected by the run; the time, the commit and the digest of the code."""
    now = datetime.datetime.now(datetime.timezone.utc)
    facts: dict[str, Any] = json.loads(os.environ.get(FACTS) or "{}")
    return {**facts, "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit(), "code": code_digest()}


class Lines:
    """Writes the log to a file, or nowhere if the path is None. Several threads may use it."""

    def __init__(self, path: Path | None) -> None:
        self._lock, self._path = threading.Lock(), path
        #: The cases that earlier sessions finished without a failure, with the lines that they wrote.
        self.finished: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self.finished = {name: line for name, line in reached(path).lines.items() if not line["failed"]}
            data = path.read_bytes()
            if data and not data.endswith(b"\n"):
                # End a line that was cut off by a kill, so that the next line is readable.
                path.write_bytes(data + b"\n")
        self.write("session", **session())

    def write(self, kind: str, **fields: Any) -> None:
        if self._path is not None:
            text = json.dumps({"kind": kind, **fields}, separators=(",", ":"), default=str)
            with self._lock, self._path.open("ab") as file:
                file.write(text.encode() + b"\n")

    def plan(self, names: Iterable[str]) -> None:
        self.write("plan", names=list(names))

    def begin(self, name: str) -> None:
        self.write("begin", name=name)

    def done(self, name: str, failed: str = "", **fields: Any) -> None:
        self.write("done", name=name, failed=failed, **fields)


@dataclass
class Reached:
    """The contents of a log, over all its sessions."""

    #: The cases that were planned, each once, and the newest line of each that is done.
    planned: dict[str, None] = field(default_factory=dict)
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Cases that were begun and not finished.
    under_way: dict[str, None] = field(default_factory=dict)

    @property
    def failed(self) -> dict[str, str]:
        return {name: line["failed"] for name, line in self.lines.items() if line["failed"]}

    @property
    def left(self) -> list[str]:
        return [name for name in self.planned if name not in self.lines]

    def text(self, names: int = 8) -> str:
        """A summary in one line: how many cases are done, which failed, were interrupted, or were not reached."""
        if not self.planned:
            return "nothing was planned"
        parts = [f"{len(self.planned) - len(self.left):,} of {len(self.planned):,}"]
        skipped = [line["skipped"] for line in self.lines.values() if line.get("skipped")]
        if skipped:
            parts.append(f"{len(skipped):,} skipped ({', '.join(dict.fromkeys(skipped))[:160]})")
        for word, found in (
            ("FAILED", [f"{name} ({why.splitlines()[0][:120]})" for name, why in self.failed.items()]),
            ("under way at the end", [name for name in self.under_way if name in self.left]),
            ("not reached", self.left),
        ):
            if found:
                more = f" and {len(found) - names:,} more" if len(found) > names else ""
                parts.append(f"{len(found):,} {word}: {', '.join(found[:names])}{more}")
        return "; ".join(parts)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file; a truncated line is ignored."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "kind" in entry:
            yield entry


def reached(path: Path) -> Reached:
    """The contents of a log; empty if the file does not exist."""
    found = Reached()
    for entry in read(path) if path.exists() else ():
        kind, name = entry["kind"], entry.get("name", "")
        if kind == "plan":
            found.planned |= dict.fromkeys(entry["names"])
        elif kind == "begin":
            found.under_way[name] = None
        elif kind == "done":
            found.planned.setdefault(name)
            found.lines[name] = entry
            found.under_way.pop(name, None)
    return found
