# SPDX-License-Identifier: Apache-2.0
"""Sums (CRC-32) of what is written, by which the next run knows what of it came to the disk."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from gpucast import files
from gpucast.files import Spec
from gpucast.files.tensor import Array


class Summing:
    """A file that sums up what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = 0

    def write(self, data: Any) -> int:
        self.sum = zlib.crc32(data, self.sum)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Summed:
    """A writer of the tensors that take the place of one, which notes the bytes and the sum of each."""

    def __init__(self, writer: files.Writer, target: Any) -> None:
        self._writer, self._target = writer, target
        self.nbytes, self.sums = 0, list[int]()

    def write(self, spec: Spec, chunks: Iterable[Array]) -> int:
        return self._noted(lambda: self._writer.write(spec, chunks))

    def copy(self, spec: Spec) -> int:
        return self._noted(lambda: self._writer.copy(spec))

    def _noted(self, work: Callable[[], int]) -> int:
        self._target.sum = 0
        nbytes = work()
        self.nbytes += nbytes
        self.sums.append(self._target.sum)
        return nbytes


def sum_of(blocks: Iterable[bytes]) -> int:
    found = 0
    for block in blocks:
        found = zlib.crc32(block, found)
    return found
