# SPDX-License-Identifier: Apache-2.0
"""Sums of what is written, by which the next run knows what of it came to the disk.

The sum of a tensor is that of its bytes as little-endian words of 64 bits, and it is not reduced: whatever of them
reads as zeros after a power cut makes it smaller. Pieces may be summed up in any order.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import numpy as np

from gpucast import files
from gpucast.cpu.native import library as host_native
from gpucast.files import Spec, safetensors, window
from gpucast.files.tensor import Array

_WORD = 8
#: Bytes that are looked at while they are in the cache.
_BLOCK = 1 << 18


def checksum(data: Any, position: int = 0) -> int:
    """What bytes add to the sum of a tensor that has them from `position` on."""
    raw = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    head = min(-position % _WORD, raw.size)
    found = int.from_bytes(raw[:head].tobytes(), "little") << 8 * (position % _WORD)
    tail = raw.size - (raw.size - head) % _WORD
    if head < tail and (native := host_native.library()) is not None:
        sums = (ctypes.c_uint64 * 2)()
        native.sum_words(ctypes.c_void_p(raw[head:].ctypes.data), ctypes.c_uint64((tail - head) // _WORD), sums)
        found += sums[0] + (sums[1] << 32)
        head = tail
    for start in range(head, tail, _BLOCK):
        words = raw[start : min(start + _BLOCK, tail)].view("<u8")
        high = int(np.add.reduce(words >> np.uint64(32))) << 32
        # NumPy's sum lacks a multiple of 2^64, and that of the low halves is less than 2^64.
        found += high + (int(np.add.reduce(words)) - high) % (1 << 64)
    return found + int.from_bytes(raw[tail:].tobytes(), "little")


def checksum_of_blocks(blocks: Iterable[bytes]) -> int:
    """The sum of a tensor that has these bytes."""
    found = position = 0
    for block in blocks:
        found += checksum(block, position)
        position += len(block)
    return found


class ChecksumFile:
    """A file that sums up what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sum = self._position = 0

    def begin(self) -> None:
        """What is written from now on is a tensor."""
        self.sum = self._position = 0

    def write(self, data: Any) -> int:
        self.sum += checksum(data, self._position)
        self._position += len(data)
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class ChecksumWriter:
    """A writer of the tensors that take the place of one, which notes the bytes and the sum of each."""

    def __init__(self, writer: files.Writer, target: Any) -> None:
        self._writer, self._target = writer, target
        self.nbytes, self.sums = 0, list[int]()

    def write(self, spec: Spec, chunks: Iterable[Array]) -> int:
        return self._noted(lambda: self._writer.write(spec, chunks))

    def copy(self, spec: Spec) -> int:
        return self._noted(lambda: self._writer.copy(spec))

    def placed(self, spec: Spec) -> PositionedWriter | None:
        """What writes the pieces of a tensor in any order, in several threads; None where that cannot be."""
        if not (isinstance(self._target, ChecksumFile) and isinstance(self._writer, safetensors.Writer)):
            return None
        file = self._target.file
        if not window.can_write(file):
            return None
        file.flush()
        return PositionedWriter(self._writer, spec, file, self._add)

    def _noted(self, work: Callable[[], int]) -> int:
        if not isinstance(self._target, ChecksumFile):
            nbytes = work()
            self._add(nbytes, 0)
            return nbytes
        self._target.begin()
        nbytes = work()
        self._add(nbytes, self._target.sum)
        return nbytes

    def _add(self, nbytes: int, total: int) -> None:
        self.nbytes += nbytes
        self.sums.append(total)


class PositionedWriter:
    """Writes the pieces of one tensor to their places."""

    def __init__(
        self, writer: safetensors.Writer, spec: Spec, file: BinaryIO, note: Callable[[int, int], None]
    ) -> None:
        self._writer, self._spec, self._file, self._all = writer, spec, file, note
        self._begin = writer.begin(spec)
        self._nbytes = self._sum = 0
        self._lock = threading.Lock()

    def write(self, start: int, chunk: Array) -> None:
        """The flat elements from `start` on, a multiple of 4."""
        position, data = self._writer.place(self._spec, start, chunk)
        window.write(self._file, position, data.data)
        self.note(data.nbytes, checksum(data, position - self._begin))

    def place(self, start: int) -> tuple[int, int]:
        """The file's number, and the byte where the flat elements from `start` on go: for who writes them, and then
        says with `note` what came there."""
        assert self._spec.dtype is not None
        return self._file.fileno(), self._begin + self._spec.dtype.nbytes(start)

    def note(self, nbytes: int, total: int) -> None:
        """So many bytes with this sum have been written."""
        with self._lock:
            self._nbytes += nbytes
            self._sum += total

    def done(self) -> None:
        """All pieces are written."""
        self._all(self._nbytes, self._sum)
