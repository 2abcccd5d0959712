# SPDX-License-Identifier: Apache-2.0
"""Reads and writes an ordinary file at given positions, from several threads at the same time."""

from __future__ import annotations

import io
import os
from typing import Any, BinaryIO

#: Windows has neither call.
_CAN_READ, _CAN_WRITE = hasattr(os, "preadv"), hasattr(os, "pwrite")


class Window(io.RawIOBase):
    """An independent stream over a file that other threads read too; it begins at byte `position`."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file, self._position = file, position

    def position(self) -> tuple[int, int]:
        """The file descriptor, and the position of the next byte."""
        return self.fileno(), self._position

    def fileno(self) -> int:
        return self._file.fileno()

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        got = os.preadv(self.fileno(), [buffer], self._position)
        self._position += got
        return got


def can_read(stream: Any) -> bool:
    """Whether the stream is an ordinary file, or a window over one, so that a `Window` can read it."""
    if isinstance(stream, Window):
        return True
    return _CAN_READ and isinstance(stream, io.BufferedReader) and type(stream.raw) is io.FileIO


def can_write(stream: Any) -> bool:
    """Whether the stream is an ordinary file, so that `write` can write to it."""
    return _CAN_WRITE and isinstance(stream, io.BufferedRandom) and type(stream.raw) is io.FileIO


def write(file: BinaryIO, position: int, data: memoryview) -> None:
    """Write bytes at a position, bypassing the file's own buffer, which must have been flushed."""
    while data:
        done = os.pwrite(file.fileno(), data, position)
        position, data = position + done, data[done:]
