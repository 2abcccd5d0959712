# SPDX-License-Identifier: Apache-2.0
"""The identity of an input file: shows whether the file has changed since it was planned."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import NamedTuple

#: Bytes at each end of a file that are hashed.
_END = 1 << 16


@dataclass(frozen=True)
class Identity:
    """Path, size, time and a hash of a file: the same on every machine that sees it, and in the next run."""

    path: str
    size: int
    #: In nanoseconds.
    time: int
    #: SHA-256 of the first and last bytes, which hold the headers and the directory of a .npz with its checksums.
    ends: str

    @staticmethod
    def of(path: str) -> Identity:
        status = os.stat(path)
        return Identity(path, status.st_size, status.st_mtime_ns, _ends(path))

    def is_unchanged(self, quick: bool = False) -> bool:
        """Whether the file is still the same. `quick` compares only size and time."""
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.time):
            return False
        return quick or _ends(self.path) == self.ends


class Stamp(NamedTuple):
    """Differs after any change of a file, or if another file replaces it. Valid on one machine only."""

    device: int
    inode: int
    #: When content, name or mode last changed: unlike the time of the content it cannot be set. In nanoseconds.
    changed: int
    size: int
    time: int

    @staticmethod
    def of(path: str) -> Stamp:
        status = os.stat(path)
        return Stamp(status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns)


def _ends(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(_END))
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _END))
        digest.update(file.read(_END))
    return digest.hexdigest()
