# SPDX-License-Identifier: Apache-2.0
"""The journal of a file: what is finished, one line of JSON per tensor, written as it happens."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from gpucast.core.places import replaced


class Journal:
    """A file that only grows. What a kill leaves of the last line is passed over."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        """The records, up to the first line that is not a record."""
        records: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    record = None
                if not isinstance(record, dict):
                    break
                records.append(record)
        return records

    @contextlib.contextmanager
    def appending(self, records: list[dict[str, Any]]) -> Iterator[Any]:
        """Gives a function that adds a record. The file is replaced by one with the given `records` first.

        When the block ends without an error, all records have reached the disk.
        """
        # For a finished file the old journal is the only record: the new one is on the disk before it takes its place.
        with replaced(self._path, 0o666) as file:
            file.write(b"".join(map(_line, records)))
        with open(self._path, "ab", buffering=0) as file:

            def add(record: dict[str, Any]) -> None:
                line = _line(record)
                while line:
                    line = line[file.write(line) :]

            yield add
            os.fsync(file.fileno())


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
