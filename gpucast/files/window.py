# SPDX-License-Identifier: Apache-2.0
"""Reading and writing places of an ordinary file, in several threads at the same time."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

#: Windows has neither call.
_CAN_READ, _CAN_WRITE = hasattr(os, "preadv"), hasattr(os, "pwrite")


class Window(io.RawIOBase):
    """A stream of its own over a file that others read meanwhile; it begins at byte `position`."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file, self._position = file, position

    def place(self) -> tuple[int, int]:
        """The file's number, and the next byte."""
        return self._file.fileno(), self._position

    def readinto(self, buffer: Any) -> int:
        got = os.preadv(self._file.fileno(), [buffer], self._position)
        self._position += got
        return got


def can_read(stream: Any) -> bool:
    """Whether the stream is an ordinary file, which a `Window` can read."""
    return _CAN_READ and isinstance(stream, io.BufferedReader) and type(stream.raw) is io.FileIO


def can_write(stream: Any) -> bool:
    """Whether the stream is an ordinary file, which `write` can write."""
    return _CAN_WRITE and isinstance(stream, io.BufferedRandom) and type(stream.raw) is io.FileIO


def write(file: BinaryIO, position: int, data: memoryview) -> None:
    """Write bytes past the file's own buffer, which has to be flushed."""
    while data:
        done = os.pwrite(file.fileno(), data, position)
        position, data = position + done, data[done:]
