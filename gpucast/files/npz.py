# SPDX-License-Identifier: Apache-2.0
"""The .npz format: a ZIP archive of .npy files, read and written member by member.

Types below one byte are stored as ONNX raw_data in UINT8 arrays, which `numpy.load` can read. The member
``__gpucast__`` (JSON text) then gives their types and shapes: {"weights": {"dtype": "INT4", "shape": [3, 5]}}. It also
has the metadata, texts by name, as "__metadata__".
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from gpucast.core.dtypes import dtype
from gpucast.files import file_limits, npy, raw_data
from gpucast.files.tensor import FileError, NDArray, Spec, StoredTensor, Tensor, check_bytes, checked_name
from gpucast.files.tensor import Writer as TensorWriter

_METADATA, _TEXTS = "__gpucast__", "__metadata__"
#: The bytes of one read: zipfile takes several times as many meanwhile.
_READ = 1 << 20
#: The compression methods that NumPy writes, and their largest possible compression ratios.
_RATIOS = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: file_limits.DEFLATED}


def read(file: BinaryIO, path: str) -> tuple[list[Tensor], dict[str, str]]:
    with _damage(path):
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    held = os.fstat(file.fileno()).st_size
    if (claimed := sum(info.compress_size for info in infos)) > held:
        # Members that overlap would count the same bytes again and again.
        raise FileError(f"{path}: its members claim {claimed} bytes, the file holds {held}")
    tensors: dict[str, StoredTensor] = {}
    for info in infos:
        tensor = _member(archive, info, held, path)
        if tensor.name in tensors:
            raise FileError(f"{path}: has two tensors of the name {tensor.name!r}")
        tensors[tensor.name] = tensor
    types, texts = _metadata(tensors.pop(_METADATA, None), path)
    for name, entry in types.items():
        stored = tensors.get(name)
        if stored is None or stored.kind != "|u1" or stored.fortran:
            raise FileError(f"{path}: {_METADATA} describes {name!r}, which is no U8 tensor of the file")
        kind, shape = raw_data.described(entry.get("dtype"), entry.get("shape"), stored.nbytes, path, name)
        tensors[name] = replace(stored, dtype=kind, shape=shape, element=None, family="raw_data", is_plain=True)
    return list(tensors.values()), texts


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, held: int, path: str) -> StoredTensor:
    if not info.filename.endswith(".npy"):
        raise FileError(f"{path}: the member {info.filename!r} is no .npy file")
    name = checked_name(info.filename.removesuffix(".npy"), path)
    ratio = _RATIOS.get(info.compress_type)
    if ratio is None:
        raise FileError(f"{path}: tensor {name!r} is compressed in a way that NumPy does not use")
    if info.file_size > ratio * info.compress_size or info.compress_size > held:
        raise FileError(f"{path}: tensor {name!r} claims {info.file_size} bytes, more than the file can hold")
    with _damage(path), archive.open(info) as stream:
        header = npy.read_header(stream, path, name)  # type: ignore[arg-type]
        start = stream.tell()
    check_bytes(path, name, header.nbytes, info.file_size - start)
    if header.fortran and header.nbytes > max(file_limits.SMALL_FORTRAN, file_limits.FORTRAN * info.compress_size):
        raise FileError(
            f"{path}: tensor {name!r} is in Fortran order, which is read as a whole, and has {header.nbytes} bytes in "
            f"{info.compress_size} compressed ones; expected at most {file_limits.FORTRAN} times as many; "
            "save it in C order"
        )

    def data() -> Any:
        with _damage(path):
            member = archive.open(info)
            member.read(start)
        return _Member(member, path)

    return npy.tensor(header, data, path, name)


class _Member:
    """A stream of a member's bytes that raises all errors as FileError."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream, self._path = stream, path

    def read(self, count: int = -1) -> bytes:
        with _damage(self._path):
            data: bytes = self._stream.read(count)
            return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(min(len(buffer), _READ))
        buffer[: len(data)] = data
        return len(data)


@contextlib.contextmanager
def _damage(path: str) -> Iterator[None]:
    """Turn errors into FileError: zipfile and the decompressors raise many types for a damaged archive."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:
        raise FileError(f"{path}: the .npz archive cannot be read: {error}") from None


def _metadata(tensor: StoredTensor | None, path: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The types and shapes of tensors, by name, and the texts."""
    if tensor is None:
        return {}, {}
    wrong = FileError(f"{path}: the member {_METADATA!r} is not the text that gpucast writes")
    if tensor.dtype is not dtype("STRING") or tensor.shape != () or tensor.nbytes > file_limits.HEADER:
        raise wrong
    try:
        types = file_limits.parsed_json(str(tensor.read()[()]))
    except ValueError:
        raise wrong from None
    texts = types.pop(_TEXTS, {}) if isinstance(types, dict) else None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise wrong
    if not all(isinstance(entry, dict) for entry in types.values()):
        raise wrong
    return types, texts


class Writer(TensorWriter):
    family = "npy"

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        for spec in plan:
            if spec.name in (_METADATA, _TEXTS):
                raise FileError(f"{path}: the name {spec.name!r} is reserved in .npz files")
        self._archive = zipfile.ZipFile(file, "w")
        self._path = path
        self._described: dict[str, Any] = {_TEXTS: dict(metadata)} if metadata else {}

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        onnx_type = spec.dtype
        assert onnx_type is not None
        with self._open(spec.name) as member:
            if not onnx_type.packed:
                return npy.write(member, spec, chunks, self._path)
            member.write(npy.header_of(dtype("UINT8"), (onnx_type.nbytes(spec.size),)))
            self._described[spec.name] = {"dtype": onnx_type.name, "shape": spec.shape}
            return raw_data.write(member, onnx_type, chunks)

    def copy(self, spec: Spec) -> int:
        with self._open(spec.name) as member:
            return npy.copy(member, spec)

    def finish(self) -> None:
        if self._described:
            text = np.array([json.dumps(self._described)])
            with self._open(_METADATA) as member:
                npy.write(member, Spec(_METADATA, dtype("STRING"), ()), [text], self._path)
        self._archive.close()

    def abort(self) -> None:
        # Otherwise garbage collection would try to complete the archive, in a file that is closed by then.
        with contextlib.suppress(OSError, ValueError):
            self._archive.close()

    def _open(self, name: str) -> Any:
        # With a fixed date, equal tensors give equal files.
        info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
        info.external_attr = 0o600 << 16
        return self._archive.open(info, "w", force_zip64=True)
