# SPDX-License-Identifier: Apache-2.0
"""The journal of a file, one line of JSON per finished tensor, and the checksums in it.

Checksums tell the next run which tensors have reached the disk. The checksum of a tensor is the sum of its bytes as
little-endian 64-bit words. The sum is not reduced modulo anything, so that bytes which read as zeros after a power cut
make it smaller. Pieces can be added in any order.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from gpucast import files
from gpucast.core.places import replaced
from gpucast.files import Spec, safetensors, tensor
from gpucast.files.tensor import NDArray
from gpucast.host.files import sum_words

_WORD = 8


class Journal:
    """A file that only grows. A last line that a kill cut short is ignored."""

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


def checksum(data: Any, position: int = 0) -> int:
    """The share of some bytes, at byte `position` of a tensor, in its checksum."""
    raw = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    head = min(-position % _WORD, raw.size)
    total = int.from_bytes(raw[:head].tobytes(), "little") << 8 * (position % _WORD)
    tail = raw.size - (raw.size - head) % _WORD
    if head < tail:
        words = sum_words(raw[head:tail])
        # NumPy's sum would wrap around modulo 2^64.
        total += sum(raw[head:tail].view("<u8").tolist()) if words is None else words
    return total + int.from_bytes(raw[tail:].tobytes(), "little")


def checksum_of_blocks(blocks: Iterable[bytes]) -> int:
    """The checksum of a tensor whose bytes come in blocks."""
    total = position = 0
    for block in blocks:
        total += checksum(block, position)
        position += len(block)
    return total


class ChecksumFile:
    """A file that computes the checksum of its data as they are written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sum = self._position = 0

    def begin(self) -> None:
        """Start a new checksum: the bytes written from now on belong to the next tensor."""
        self.sum = self._position = 0

    def write(self, data: Any) -> int:
        self.sum += checksum(data, self._position)
        self._position += len(data)
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class ChecksumWriter:
    """Writes the tensors that replace one source tensor, and records their sizes in bytes and their checksums."""

    def __init__(self, writer: files.Writer, target: Any) -> None:
        self._writer, self._target = writer, target
        self.nbytes, self.checksums = 0, list[int]()

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        return self._recorded(lambda: self._writer.write(spec, chunks))

    def copy(self, spec: Spec) -> int:
        return self._recorded(lambda: self._writer.copy(spec))

    def holds(self, specs: Sequence[Spec], checksums: object) -> bool:
        """Whether the file has these tensors already, with these checksums; False if the file cannot be continued."""
        writer = self._writer
        if not isinstance(writer, safetensors.Writer):
            return False
        return checksums == [checksum_of_blocks(writer.stored(spec)) for spec in specs]

    def positioned(self, spec: Spec) -> PositionedWriter | None:
        """A writer for pieces of a tensor in any order and from several threads; None if the file does not allow it."""
        if not (isinstance(self._target, ChecksumFile) and isinstance(self._writer, safetensors.Writer)):
            return None
        file = self._target.file
        if not tensor.can_write(file):
            return None
        file.flush()
        return PositionedWriter(self._writer, spec, file, self._add)

    def _recorded(self, work: Callable[[], int]) -> int:
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
        self.checksums.append(total)


class PositionedWriter:
    """Writes the pieces of one tensor to their positions in the file. Safe to call from several threads."""

    def __init__(
        self, writer: safetensors.Writer, spec: Spec, file: BinaryIO, finished: Callable[[int, int], None]
    ) -> None:
        self._writer, self._spec, self._file, self._finished = writer, spec, file, finished
        self._begin = writer.begin(spec)
        self._nbytes = self._sum = 0
        self._lock = threading.Lock()

    def write(self, start: int, chunk: NDArray) -> None:
        """Write flat elements; `start` is the index of the first one, a multiple of 4."""
        position, data = self._writer.position(self._spec, start, chunk)
        tensor.write(self._file, position, data.data)
        self.note(data.nbytes, checksum(data, position - self._begin))

    def place(self, start: int) -> tuple[int, int]:
        """The file descriptor, and the byte position of the flat element `start`.

        For a caller that writes the elements itself and then calls `note`.
        """
        assert self._spec.dtype is not None
        return self._file.fileno(), self._begin + self._spec.dtype.nbytes(start)

    def note(self, nbytes: int, total: int) -> None:
        """Record that `nbytes` bytes with the checksum `total` have been written."""
        with self._lock:
            self._nbytes += nbytes
            self._sum += total

    def done(self) -> None:
        """Record that all pieces are written."""
        self._finished(self._nbytes, self._sum)
