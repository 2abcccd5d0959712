# SPDX-License-Identifier: Apache-2.0
"""The parts that all file formats share: named tensors that are read piece by piece, writers, and the error."""

from __future__ import annotations

import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, ClassVar

import numpy as np

from gpucast.arrays.bitpacking import unpack_codes
from gpucast.core.dtypes import DType
from gpucast.core.dtypes.lookup import UNLIKE
from gpucast.core.errors import PrintableError
from gpucast.files import file_limits

#: Windows has neither call.
_CAN_READ, _CAN_WRITE = hasattr(os, "preadv"), hasattr(os, "pwrite")
NDArray = np.ndarray[Any, Any]
#: Bytes of one piece in memory. Pieces have a multiple of 4 elements, so that packed codes end on a byte.
CHUNK_BYTES = 1 << 23


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


class FileError(PrintableError, ValueError):
    """A tensor file is malformed, or its format cannot hold the tensors. The message begins with the path."""


@dataclass(frozen=True)
class Tensor(ABC):
    """One named tensor of an open file.

    `dtype` is None for a type that Cast does not take; `kind` is the file's own name of the type.
    """

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    kind: str
    nbytes: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @abstractmethod
    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """The elements in row-major order, as flat unpacked arrays; all but the last have a multiple of 4 elements."""

    def pieces(self, count: int) -> Iterator[NDArray]:
        """As `chunks`, with `count` elements at a time, a multiple of 4."""
        return self.chunks(count * self.itemsize)

    def parts(self, limit: int = CHUNK_BYTES) -> Iterator[Tensor]:
        """As `chunks`, each as a flat tensor. Several threads may read different parts at the same time."""
        for chunk in self.chunks(limit):
            yield LoadedTensor(self.name, self.dtype, chunk.shape, self.kind, chunk.nbytes, chunk)

    def part(self, start: int, count: int) -> Tensor | None:
        """Some of the elements as a flat tensor; None where it would take reading others. `start`: a multiple of 4."""
        return None

    @property
    @abstractmethod
    def itemsize(self) -> int:
        """Bytes of one element in memory."""

    @abstractmethod
    def read(self) -> NDArray:
        """All elements as one array of `shape`: `dtype.numpy`, or NumPy's own string dtypes for STRING."""


@dataclass(frozen=True)
class LoadedTensor(Tensor):
    """A tensor whose elements are already in memory."""

    array: NDArray = field(repr=False)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
        return slices(self.array.reshape(-1), self.array.itemsize, limit)

    @property
    def itemsize(self) -> int:
        return int(self.array.itemsize)

    def read(self) -> NDArray:
        return self.array


@dataclass(frozen=True)
class StoredTensor(Tensor):
    """A tensor whose bytes stay in the file until they are needed.

    `open` returns a stream at the first byte. `element` is the NumPy dtype of a stored element, None for packed codes
    and for types that are only copied. Formats of the same `family` may copy `header` and bytes unchanged.
    """

    path: str
    family: str
    open: Callable[[], BinaryIO] = field(repr=False)
    element: np.dtype[Any] | None = None
    fortran: bool = False
    #: Whether the file says that a narrow type holds numbers, not codes that have scales.
    is_plain: bool = False
    header: bytes = field(default=b"", repr=False)

    def blocks(self) -> Iterator[bytes]:
        """The bytes as they are in the file."""
        stream, left = self.open(), self.nbytes
        while left:
            block = bytearray(min(left, CHUNK_BYTES))
            self._fill(stream, memoryview(block))
            left -= len(block)
            yield bytes(block)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
        return self._in_row_major_order(limit) if self.fortran else self._in_file_order(limit)

    def parts(self, limit: int = CHUNK_BYTES) -> Iterator[Tensor]:
        stream = self.open()
        if self.fortran or not can_read(stream):
            yield from super().parts(limit)
            return
        position = stream.tell()
        for count in _counts(self.size, self.itemsize, limit):
            part = self._at(stream, position, count)
            position += part.nbytes
            yield part

    def part(self, start: int, count: int) -> Tensor | None:
        stream = self.open()
        if self.fortran or not can_read(stream):
            return None
        return self._at(stream, stream.tell() + self._nbytes(start), count)

    def _at(self, stream: BinaryIO, position: int, count: int) -> StoredTensor:
        open_part: Callable[[], Any] = partial(Window, stream, position)
        return replace(self, shape=(count,), nbytes=self._nbytes(count), open=open_part)

    def read(self) -> NDArray:
        if self.dtype is None:
            more = "" if self.element is None else f": {UNLIKE[name]}" if (name := self.element.name) in UNLIKE else ""
            raise FileError(f"{self.path}: tensor {self.name!r} has type {self.kind}, which Cast does not take{more}")
        flat = next(self._in_file_order((self.size + 4) * self.itemsize), None)
        if flat is None:
            return np.empty(self.shape, dtype=self.element if self.dtype.family == "string" else self.dtype.numpy)
        if self.fortran:
            return np.ascontiguousarray(flat.reshape(self.shape[::-1]).T)
        return flat.reshape(self.shape)

    def of_type(self, dtype: DType) -> StoredTensor:
        """The same bytes read as another type: one code per element."""
        return replace(self, dtype=dtype, element=dtype.code_numpy.newbyteorder("<"))

    @property
    def itemsize(self) -> int:
        return 1 if self.element is None else self.element.itemsize

    def _in_row_major_order(self, limit: int) -> Iterator[NDArray]:
        """Chunks of a tensor in Fortran order, which is read as a whole: its second element may be anywhere."""
        flat = next(self._in_file_order((self.size + 4) * self.itemsize), None)
        if flat is None:
            return
        x, count = flat.reshape(self.shape[::-1]).T, limit // max(1, self.itemsize)
        rows = count // max(1, self.size // len(x)) // 4 * 4
        if rows:
            for start in range(0, len(x), rows):
                yield np.ascontiguousarray(x[start : start + rows]).reshape(-1)
            return
        start = 0
        for count in _counts(self.size, self.itemsize, limit):
            yield x.flat[start : start + count]
            start += count

    def _in_file_order(self, limit: int) -> Iterator[NDArray]:
        dtype, stream = self.dtype, self.open()
        assert dtype is not None, "tensors of other types are only copied"
        for count in _counts(self.size, self.itemsize, limit):
            raw = np.empty(self._nbytes(count), dtype=np.uint8)
            self._fill(stream, raw.data)
            yield self._decode(raw, dtype, count)

    def _nbytes(self, count: int) -> int:
        """The bytes of `count` elements in the file."""
        if self.element is not None:
            return count * self.element.itemsize
        assert self.dtype is not None
        return self.dtype.nbytes(count)

    def _fill(self, stream: BinaryIO, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            try:
                got = stream.readinto(buffer[done:])  # type: ignore[attr-defined]
            except OSError as error:
                raise FileError(f"{self.path}: tensor {self.name!r} cannot be read: {error.strerror}") from error
            if not got:
                raise FileError(
                    f"{self.path}: tensor {self.name!r} is truncated: {len(buffer) - done} bytes are missing"
                )
            done += got

    def _decode(self, raw: NDArray, dtype: DType, count: int) -> NDArray:
        if self.element is None:
            return np.asarray(unpack_codes(raw, dtype.bits, count)).view(dtype.numpy)
        if dtype.family == "bool":
            # NumPy booleans must be 0 or 1, but a file may hold other bytes.
            return np.asarray(raw != 0)
        array = raw.view(self.element)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if dtype.family == "string" else native.view(dtype.numpy)


@dataclass(frozen=True)
class Linear:
    """How the initializer `of` of an ONNX model comes from codes: by DequantizeLinear, with these other initializers.

    `axis` and `block_size` are the attributes of the operator; None: one scale.
    """

    of: str
    scales: str
    zero_points: str | None = None
    axis: int | None = None
    block_size: int = 0


@dataclass(frozen=True)
class Spec:
    """A tensor to write: elements of type `dtype`, or the unchanged bytes of another file (`source`)."""

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    source: StoredTensor | None = None
    #: For codes in an ONNX model.
    linear: Linear | None = None
    #: As `StoredTensor.is_plain`.
    is_plain: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Writer(ABC):
    """Writes the tensors of a plan, one after the other, into a binary file."""

    #: As `StoredTensor.family`.
    family: ClassVar[str]

    @abstractmethod
    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        """FileError if the format cannot hold the tensors of `plan`."""

    @abstractmethod
    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        """Write one tensor of the plan from flat arrays as `Tensor.chunks` gives them; the bytes written."""

    @abstractmethod
    def copy(self, spec: Spec) -> int:
        """Write one tensor of the plan that has a `source`; the bytes written."""

    def finish(self) -> None:  # noqa: B027 (a default)
        """Write the part of the file that follows the tensors."""

    def abort(self) -> None:  # noqa: B027 (a default)
        """Release the file after an error; its content no longer matters."""


def slices(flat: NDArray, itemsize: int, limit: int = CHUNK_BYTES) -> Iterator[NDArray]:
    start = 0
    for count in _counts(flat.size, itemsize, limit):
        yield flat[start : start + count]
        start += count


def _counts(size: int, itemsize: int, limit: int) -> Iterator[int]:
    # Empty texts take no bytes.
    step = max(4, limit // max(1, itemsize) // 4 * 4)
    for start in range(0, size, step):
        yield min(step, size - start)


def checked_name(name: object, path: str) -> str:
    """The name of a tensor; FileError unless every format can write it."""
    try:
        if isinstance(name, str) and "\0" not in name and len(name.encode("utf-8")) <= file_limits.NAME:
            return name
    except UnicodeEncodeError:
        pass
    raise FileError(
        f"{path}: {_short(name)} is not a tensor name; expected Unicode text without NUL "
        f"of at most {file_limits.NAME} bytes"
    )


def checked_lengths(shape: object, path: str, name: str) -> tuple[int, ...]:
    """A shape read from a file. FileError unless it has at most 64 lengths, none negative, and under 2^63 elements.

    Where a length is 0, the product of the others is under 2^59.
    """
    if isinstance(shape, (list, tuple)) and len(shape) <= file_limits.NDIM:
        lengths = tuple(shape)
        most = file_limits.BESIDE_ZERO if 0 in lengths else file_limits.ELEMENTS
        if all(type(n) is int and n >= 0 for n in lengths) and math.prod(n for n in lengths if n) < most:
            return lengths
    raise FileError(
        f"{path}: tensor {name!r} has shape {_short(shape)}; expected up to {file_limits.NDIM} lengths, fewer than "
        "2^63 elements, and beside a length of 0 others with a product under 2^59"
    )


def check_bytes(path: str, name: str, claimed: int, held: int) -> None:
    if claimed != held:
        raise FileError(f"{path}: tensor {name!r} claims {claimed} bytes of data, the file holds {held}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
