# SPDX-License-Identifier: Apache-2.0
"""By what a change of a file that is read is noticed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

#: Bytes at each end of a file that are summed up.
_END = 1 << 16


@dataclass(frozen=True)
class Identity:
    """What is known of a file: the same on every machine that sees it, and in the next run."""

    path: str
    size: int
    #: In nanoseconds.
    time: int
    #: A sum of the first and the last bytes, where headers lie, and the directory of a .npz with its checksums.
    ends: str

    @staticmethod
    def of(path: str) -> Identity:
        found = os.stat(path)
        return Identity(path, found.st_size, found.st_mtime_ns, _ends(path))

    def is_unchanged(self, quick: bool = False) -> bool:
        """Whether the file still is the same; `quick`: by its size and time alone."""
        found = os.stat(self.path)
        if (found.st_size, found.st_mtime_ns) != (self.size, self.time):
            return False
        return quick or _ends(self.path) == self.ends


def stamp(path: str) -> tuple[int, ...]:
    """Changes with every change of the file, or where another takes its place; means nothing to other machines."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size, found.st_mtime_ns


def _ends(path: str) -> str:
    with open(path, "rb") as file:
        told = hashlib.sha256(file.read(_END))
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _END))
        told.update(file.read(_END))
    return told.hexdigest()
