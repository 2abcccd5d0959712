# SPDX-License-Identifier: Apache-2.0
"""The .safetensors format, without the safetensors package (which supports no float8 and float4 for NumPy).

Layout: the length of the header (8 bytes, little-endian), the header (JSON, padded with blanks), the tensors' bytes
without gaps. Types that the format lacks are stored as ONNX raw_data of type U8, and ``__metadata__`` describes them:
"gpucast.dtype.weights": "INT4", "gpucast.shape.weights": "[3, 5]". The first is also
written for numbers that were cast to 8 bits or fewer, since others store codes in such types.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from gpucast.core.dtypes import DType, dtype
from gpucast.files import file_limits, raw_data
from gpucast.files.tensor import (
    CHUNK_BYTES,
    FileError,
    NDArray,
    Spec,
    StoredTensor,
    Tensor,
    checked_lengths,
    checked_name,
)
from gpucast.files.tensor import Writer as TensorWriter

_METADATA = "__metadata__"
_DTYPE, _SHAPE = "gpucast.dtype.", "gpucast.shape."
#: Bits of known types that Cast does not take.
OTHER_BITS = {"C64": 64}


def read(file: BinaryIO, path: str) -> tuple[list[Tensor], dict[str, str]]:
    header, start = _header(file, path)
    held = os.fstat(file.fileno()).st_size - start
    metadata = _metadata(header.pop(_METADATA, None), path)
    tensors: dict[str, StoredTensor] = {}
    ends = []
    for name, entry in header.items():
        tensor, begin, end = _tensor(file, start, checked_name(name, path), entry, path)
        tensors[name] = tensor
        ends.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(ends):
        if begin != position:
            raise FileError(f"{path}: tensor {name!r} begins at byte {begin} of the data; expected {position}")
        position = end
    if position != held:
        raise FileError(f"{path}: the header claims {position} bytes of data, the file holds {held}")
    for name, entry in _described(metadata).items():
        # Another program may have removed the tensor but kept the metadata.
        if name in tensors:
            tensors[name] = _raw_data(tensors[name], entry, path)
    kept = {key: text for key, text in metadata.items() if not key.startswith((_DTYPE, _SHAPE))}
    return list(tensors.values()), kept


def _header(file: BinaryIO, path: str) -> tuple[dict[str, Any], int]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8:
        raise FileError(f"{path}: has {size} bytes; a .safetensors file begins with 8 bytes of header length")
    if length > min(size - 8, file_limits.HEADER):
        limit = f"the file holds {size - 8}" if length > size - 8 else f"expected at most {file_limits.HEADER}"
        raise FileError(f"{path}: the .safetensors header claims {length} bytes; {limit}")
    text = file.read(length)
    try:
        header = file_limits.parsed_json(text, _unique) if text[:1] == b"{" else None
    except _Duplicate as duplicate:
        raise FileError(f"{path}: the .safetensors header has {duplicate.args[0]!r} twice") from None
    except file_limits.OverLimit as error:
        raise FileError(f"{path}: the .safetensors header {error}") from None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise FileError(f"{path}: the .safetensors header is no JSON object")
    return header, 8 + length


class _Duplicate(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise _Duplicate(name)
        entries[name] = value
    return entries


def _metadata(value: object, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise FileError(f"{path}: {_METADATA} is no JSON object of texts")


def _tensor(file: BinaryIO, start: int, name: str, entry: Any, path: str) -> tuple[StoredTensor, int, int]:
    fields = entry if isinstance(entry, dict) else {}
    code, shape, offsets = fields.get("dtype"), fields.get("shape"), _offsets(fields.get("data_offsets"))
    if not isinstance(code, str) or not isinstance(shape, list) or offsets is None:
        raise FileError(f"{path}: tensor {name!r} needs dtype (text), shape (list) and data_offsets ([begin, end])")
    if len(code) > file_limits.KIND:
        raise FileError(
            f"{path}: tensor {name!r}: the dtype has {len(code)} characters; expected at most {file_limits.KIND}"
        )
    lengths = checked_lengths(shape, path, name)
    begin, end = offsets
    onnx_type = _dtype(code)
    bits = OTHER_BITS.get(code) if onnx_type is None else onnx_type.bits
    claimed = None if bits is None else math.prod(lengths) * bits
    if claimed is not None and claimed != (end - begin) * 8:
        raise FileError(
            f"{path}: tensor {name!r}: {code} of shape {lengths} takes {claimed} bits, but has {end - begin} bytes"
        )

    def data() -> BinaryIO:
        file.seek(start + begin)
        return file

    element = None if onnx_type is None or onnx_type.packed else onnx_type.code_numpy.newbyteorder("<")
    return StoredTensor(name, onnx_type, lengths, code, end - begin, path, "safetensors", data, element), begin, end


def _offsets(value: object) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(offset) is int for offset in value):
        begin, end = value
        if 0 <= begin <= end:
            return begin, end
    return None


def _dtype(code: str) -> DType | None:
    try:
        return dtype.from_safetensors(code)
    except TypeError:
        return None


def _described(metadata: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    return {
        key.removeprefix(_DTYPE): (text, metadata.get(_SHAPE + key.removeprefix(_DTYPE)))
        for key, text in metadata.items()
        if key.startswith(_DTYPE)
    }


def _raw_data(tensor: StoredTensor, entry: tuple[str, str | None], path: str) -> StoredTensor:
    kind, shape = entry
    if tensor.dtype is not None and tensor.dtype.name == kind:
        return replace(tensor, is_plain=True)
    if tensor.kind != "U8":
        # Another program wrote other data and kept the metadata.
        return tensor
    try:
        lengths = file_limits.parsed_json(shape or "")
    except ValueError:
        lengths = shape
    onnx_type, known = raw_data.described(kind, lengths, tensor.nbytes, path, tensor.name)
    element = None if onnx_type.packed else onnx_type.code_numpy.newbyteorder("<")
    return replace(tensor, dtype=onnx_type, shape=known, element=element, family="raw_data", is_plain=True)


@dataclass(frozen=True)
class _Entry:
    """The header entry of a tensor, without its offset."""

    code: str
    shape: tuple[int, ...]
    bits: int
    nbytes: int


class Writer(TensorWriter):
    family = "safetensors"

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        self._file = file
        texts = dict(metadata)
        entries = {}
        for spec in plan:
            if spec.name == _METADATA:
                raise FileError(f"{path}: the name {_METADATA!r} is reserved in .safetensors files")
            entries[spec.name] = entry = _entry(spec, path)
            if spec.dtype is not None and spec.dtype.safetensors != "U8" and entry.code == "U8":
                texts[_DTYPE + spec.name] = spec.dtype.name
                texts[_SHAPE + spec.name] = json.dumps(spec.shape)
            elif spec.is_plain and spec.dtype is not None:
                # Where there are metadata, transformers asks for this one.
                texts = texts or {"format": "pt"}
                texts[_DTYPE + spec.name] = spec.dtype.name
        header: dict[str, Any] = {_METADATA: texts} if texts else {}
        self._entries, self._offsets = entries, dict[str, int]()
        position = 0
        # Tensors with wide elements come first, so that every tensor is aligned to its elements.
        for name, entry in sorted(entries.items(), key=lambda item: -item[1].bits):
            header[name] = {
                "dtype": entry.code,
                "shape": entry.shape,
                "data_offsets": [position, position + entry.nbytes],
            }
            self._offsets[name] = position
            position += entry.nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        text += b" " * (-len(text) % 8)
        if len(text) > file_limits.HEADER:
            raise FileError(
                f"{path}: a .safetensors header has at most {file_limits.HEADER} bytes; this one would have {len(text)}"
            )
        file.write(len(text).to_bytes(8, "little") + text)
        self._start = 8 + len(text)
        self._end = self._start + position

    def stored(self, spec: Spec) -> Iterator[bytes]:
        """The bytes of a tensor as they are in the file now; fewer if the file is too short."""
        self._file.seek(self.begin(spec))
        left = self._entries[spec.name].nbytes
        while left and (block := self._file.read(min(left, CHUNK_BYTES))):
            left -= len(block)
            yield block

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        assert spec.dtype is not None
        self._file.seek(self.begin(spec))
        return raw_data.write(self._file, spec.dtype, chunks)

    def begin(self, spec: Spec) -> int:
        """The byte position in the file where a tensor of the plan begins."""
        return self._start + self._offsets[spec.name]

    def position(self, spec: Spec, start: int, chunk: NDArray) -> tuple[int, NDArray]:
        """The byte position of flat elements in the file, and their bytes, for a caller that writes them itself.

        `start` is the index of the first element, a multiple of 4.
        """
        assert spec.dtype is not None
        return self.begin(spec) + spec.dtype.nbytes(start), raw_data.encoded(spec.dtype, chunk)

    def copy(self, spec: Spec) -> int:
        assert spec.source is not None
        self._file.seek(self.begin(spec))
        for block in spec.source.blocks():
            self._file.write(block)
        return spec.source.nbytes

    def finish(self) -> None:
        # An earlier attempt may have left a longer file.
        self._file.truncate(self._end)


def _entry(spec: Spec, path: str) -> _Entry:
    onnx_type = spec.dtype
    if spec.source is not None:
        bits = OTHER_BITS.get(spec.source.kind, 8) if onnx_type is None else onnx_type.bits
        return _Entry(spec.source.kind, spec.shape, bits, spec.source.nbytes)
    assert onnx_type is not None
    if onnx_type.family == "string":
        raise FileError(f"{path}: .safetensors cannot hold STRING (tensor {spec.name!r}); write .npz")
    nbytes = onnx_type.nbytes(spec.size)
    # The safetensors package writes no float6, and float4 only if the elements fill whole bytes.
    if onnx_type.safetensors is None or onnx_type.bits == 6 or spec.size * onnx_type.bits % 8:
        return _Entry("U8", (nbytes,), 8, nbytes)
    return _Entry(onnx_type.safetensors, spec.shape, onnx_type.bits, nbytes)
