# SPDX-License-Identifier: Apache-2.0
"""What every file format has in common: named tensors that are read piece by piece, and the error."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Protocol

import numpy as np

from gpucast.arrays.bitpacking import unpack_codes
from gpucast.core.dtypes import DType
from gpucast.files import window
from gpucast.files.window import Window

Array = np.ndarray[Any, Any]

#: Bytes of one piece in memory; pieces end on whole groups of packed codes (4 elements).
CHUNK_BYTES = 1 << 23


class FileError(ValueError):
    """A tensor file is malformed, or its format cannot hold what it is to hold. The message begins with the path."""


@dataclass(frozen=True)
class Tensor(ABC):
    """One named tensor of an open file.

    `dtype` is None for a type that Cast does not take; `kind` is the type in the file's own words.
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
    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[Array]:
        """The elements in row-major order as flat arrays, unpacked; those but the last are of whole packed groups."""

    def pieces(self, count: int) -> Iterator[Array]:
        """As `chunks`, by `count` elements at a time, a multiple of 4."""
        return self.chunks(count * self.itemsize)

    def parts(self, limit: int = CHUNK_BYTES) -> Iterator[Tensor]:
        """As `chunks`, each a flat tensor of its own: several threads may read several of them at the same time."""
        for chunk in self.chunks(limit):
            yield LoadedTensor(self.name, self.dtype, chunk.shape, self.kind, chunk.nbytes, chunk)

    @property
    @abstractmethod
    def itemsize(self) -> int:
        """Bytes of one element in memory."""

    @abstractmethod
    def read(self) -> Array:
        """All elements as one array of `shape`: `dtype.numpy`, or NumPy's own string dtypes for STRING."""


@dataclass(frozen=True)
class LoadedTensor(Tensor):
    """A tensor whose elements are in memory already."""

    array: Array = field(repr=False)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[Array]:
        return slices(self.array.reshape(-1), self.array.itemsize, limit)

    @property
    def itemsize(self) -> int:
        return int(self.array.itemsize)

    def read(self) -> Array:
        return self.array


@dataclass(frozen=True)
class StoredTensor(Tensor):
    """A tensor whose bytes stay in the file until they are asked for.

    `open` gives a stream that stands at the first byte. `element` is the dtype of one stored element, None for packed
    codes and for types that are only copied. `family` names the formats that may copy `header` and bytes untouched.
    """

    path: str
    family: str
    open: Callable[[], BinaryIO] = field(repr=False)
    element: np.dtype[Any] | None = None
    fortran: bool = False
    header: bytes = field(default=b"", repr=False)

    def blocks(self) -> Iterator[bytes]:
        """The bytes as they are in the file."""
        stream, left = self.open(), self.nbytes
        while left:
            block = bytearray(min(left, CHUNK_BYTES))
            self._fill(stream, memoryview(block))
            left -= len(block)
            yield bytes(block)

    def chunks(self, limit: int = CHUNK_BYTES) -> Iterator[Array]:
        if self.fortran:
            # Row-major order needs the last element before the second one.
            whole = self.read()
            return slices(whole.reshape(-1), whole.itemsize, limit)
        return self._in_file_order(limit)

    def parts(self, limit: int = CHUNK_BYTES) -> Iterator[Tensor]:
        stream = self.open()
        if self.fortran or not window.can_read(stream):
            yield from super().parts(limit)
            return
        position = stream.tell()
        for count in _counts(self.size, self.itemsize, limit):
            opened: Callable[[], Any] = partial(Window, stream, position)
            part = replace(self, shape=(count,), nbytes=self._nbytes(count), open=opened)
            position += part.nbytes
            yield part

    def read(self) -> Array:
        if self.dtype is None:
            raise FileError(f"{self.path}: tensor {self.name!r} has type {self.kind}, which Cast does not take")
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

    def _in_file_order(self, limit: int) -> Iterator[Array]:
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

    def _decode(self, raw: Array, dtype: DType, count: int) -> Array:
        if self.element is None:
            return np.asarray(unpack_codes(raw, dtype.bits, count)).view(dtype.numpy)
        if dtype.family == "bool":
            # A byte other than 0 and 1 must not become a NumPy boolean as it is.
            return np.asarray(raw != 0)
        array = raw.view(self.element)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native if dtype.family == "string" else native.view(dtype.numpy)


@dataclass(frozen=True)
class Spec:
    """What a writer is to write: elements of type `dtype`, or (`source`) the bytes of another file untouched."""

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    source: StoredTensor | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Writer(Protocol):
    """Writes the tensors of a plan, one after the other, into a binary file."""

    #: As `StoredTensor.family`.
    family: str

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        """FileError for a plan that the format cannot hold."""

    def write(self, spec: Spec, chunks: Iterable[Array]) -> int:
        """Write the elements of one tensor of the plan, flat arrays as of `Tensor.chunks`; the bytes that they take."""

    def copy(self, spec: Spec) -> int:
        """Write one tensor of the plan that has a `source`."""

    def stored(self, spec: Spec) -> Iterator[bytes]:
        """The bytes of a tensor as they are in the file, fewer if it ends before. For formats of fixed places alone."""

    def finish(self) -> None:
        """Write what follows the tensors."""

    def abort(self) -> None:
        """Let go of the file after an error; its content no longer matters."""


def slices(flat: Array, itemsize: int, limit: int = CHUNK_BYTES) -> Iterator[Array]:
    start = 0
    for count in _counts(flat.size, itemsize, limit):
        yield flat[start : start + count]
        start += count


def _counts(size: int, itemsize: int, limit: int) -> Iterator[int]:
    step = max(4, limit // itemsize // 4 * 4)
    for start in range(0, size, step):
        yield min(step, size - start)


def checked_name(name: object, path: str) -> str:
    """A tensor's name: text that every format can write."""
    try:
        if isinstance(name, str) and "\0" not in name:
            name.encode("utf-8")
            return name
    except UnicodeEncodeError:
        pass
    raise FileError(f"{path}: {name!r} is not a tensor name; expected Unicode text without NUL")


def checked_lengths(shape: object, path: str, name: str) -> tuple[int, ...]:
    """A shape read from a file: at most 64 lengths of zero or more, the non-zero ones of less than 2^63 elements."""
    if isinstance(shape, (list, tuple)) and len(shape) <= 64:
        lengths = tuple(shape)
        if all(type(n) is int and n >= 0 for n in lengths) and math.prod(n for n in lengths if n) < 1 << 63:
            return lengths
    raise FileError(
        f"{path}: tensor {name!r} has shape {_short(shape)}; expected up to 64 lengths, fewer than 2^63 elements"
    )


def check_bytes(path: str, name: str, claimed: int, held: int) -> None:
    if claimed != held:
        raise FileError(f"{path}: tensor {name!r} claims {claimed} bytes of data, the file holds {held}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
