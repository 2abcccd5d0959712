# SPDX-License-Identifier: Apache-2.0
"""The journal of a file: what is finished, one line of JSON per tensor, written as it happens."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666)


class Journal:
    """A file that only grows. What a kill leaves of the last line is passed over.

    `opener` and `replace` do what `os.open` and `os.replace` do, for names in an open folder.
    """

    def __init__(
        self, path: str, opener: Callable[[str, int], int] = _open, replace: Callable[[str, str], None] = os.replace
    ) -> None:
        self._path, self._opener, self._replace = path, opener, replace

    def read(self) -> list[dict[str, Any]]:
        """The records, up to the first line that is not a record."""
        records: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb", opener=self._opener) as file:
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
        temporary = self._path + ".new"
        with open(temporary, "wb", opener=self._opener) as file:
            file.write(b"".join(map(_line, records)))
            # Synced before the old journal is replaced: for a finished file it is the only record.
            file.flush()
            os.fsync(file.fileno())
        self._replace(temporary, self._path)
        handle = self._opener(self._path, os.O_WRONLY | os.O_APPEND)

        def add(record: dict[str, Any]) -> None:
            line = _line(record)
            while line:
                line = line[os.write(handle, line) :]

        try:
            yield add
            os.fsync(handle)
        finally:
            os.close(handle)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
