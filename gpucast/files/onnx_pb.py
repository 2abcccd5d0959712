# SPDX-License-Identifier: Apache-2.0
"""ONNX TensorProto files (.pb): one tensor of any type. Needs the onnx package."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.files import file_limits, npy, raw_data
from gpucast.files.tensor import (
    FileError,
    LoadedTensor,
    NDArray,
    Spec,
    Tensor,
    check_bytes,
    checked_lengths,
    checked_name,
)
from gpucast.files.tensor import Writer as TensorWriter

#: A protocol buffer holds less than 2 GiB; the rest is reserved for name and shape.
_LARGEST = file_limits.PROTOBUF - (1 << 16)
#: The fields of TensorProto for elements that are not in raw_data, and their types; other types use int32_data.
_FIELDS = {
    "FLOAT": ("float_data", "float32"),
    "DOUBLE": ("double_data", "float64"),
    "INT64": ("int64_data", "int64"),
    "UINT32": ("uint64_data", "uint64"),
    "UINT64": ("uint64_data", "uint64"),
}


def read(file: BinaryIO, path: str) -> tuple[list[Tensor], dict[str, str]]:
    proto = parsed(imported(path).TensorProto(), file, path, "a .pb file", "TensorProto")
    if not proto.data_type:
        raise FileError(f"{path}: is no ONNX TensorProto: it names no data type")
    name = checked_name(proto.name, path) or os.path.splitext(os.path.basename(path))[0]
    if proto.data_location == proto.EXTERNAL or proto.external_data:
        raise FileError(f"{path}: tensor {name!r} keeps its data in another file; external data is not supported")
    shape = shape_of(proto, path, name)
    onnx_type, kind = type_of(proto)
    if onnx_type is None:
        raise FileError(f"{path}: tensor {name!r} has type {kind}, which Cast does not take")
    array = _elements(proto, onnx_type, shape, path, name)
    nbytes = onnx_type.nbytes(array.size) if onnx_type.bits else sum(map(len, proto.string_data))
    return [LoadedTensor(name, onnx_type, shape, onnx_type.name, nbytes, array)], {}


def imported(path: str) -> Any:
    """Import the onnx package. FileError if it is not installed."""
    try:
        import onnx
    except ImportError:
        raise FileError(f"{path}: ONNX files need the onnx package: pip install onnx (or gpucast[onnx])") from None
    return onnx


def parsed(proto: Any, file: BinaryIO, path: str, what: str, kind: str) -> Any:
    """Read an open file into an empty proto. FileError if it holds anything else, or too much."""
    size = os.fstat(file.fileno()).st_size
    if size >= file_limits.PROTOBUF:
        raise FileError(f"{path}: has {size} bytes; {what} holds less than 2 GiB")
    try:
        proto.ParseFromString(file.read())
    except Exception as error:
        # The type of the error depends on how protobuf was built.
        raise FileError(f"{path}: is no ONNX {kind}: {error}") from None
    return proto


def shape_of(proto: Any, path: str, name: str) -> tuple[int, ...]:
    """The shape of a TensorProto; FileError for a malformed one, and for a part of a larger tensor."""
    if proto.HasField("segment"):
        raise FileError(f"{path}: tensor {name!r} is a segment of a larger tensor, which is not supported")
    return checked_lengths(list(proto.dims), path, name)


def type_of(proto: Any) -> tuple[DType | None, str]:
    """The type of a TensorProto, None for one that Cast does not take, and its name."""
    number = proto.data_type
    try:
        onnx_type = dtype(number)
    except TypeError:
        known = number in proto.DataType.values()
        return None, proto.DataType.Name(number) if known else f"ONNX type {number}"
    return onnx_type, onnx_type.name


def _elements(proto: Any, onnx_type: DType, shape: tuple[int, ...], path: str, name: str) -> NDArray:
    size = math.prod(shape)
    if onnx_type.family == "string":
        texts = _texts(proto, path, name)
        _check_count(path, name, size, len(texts))
        array = np.empty(size, dtype=object)
        array[:] = texts
        return array.reshape(shape)
    if proto.HasField("raw_data"):
        data = proto.raw_data
        raw = np.frombuffer(data, dtype=np.uint8) if data else np.empty(0, np.uint8)
    else:
        raw = typed(proto, onnx_type, size, path, name)
    check_bytes(path, name, onnx_type.nbytes(size), raw.size)
    if onnx_type.packed:
        return np.asarray(unpack_codes(raw, onnx_type.bits, size)).view(onnx_type.numpy).reshape(shape)
    if onnx_type.family == "bool":
        return np.asarray(raw != 0).reshape(shape)
    codes = raw.view(onnx_type.code_numpy.newbyteorder("<")).astype(onnx_type.code_numpy, copy=False)
    elements: NDArray = codes.view(onnx_type.numpy).reshape(shape)
    return elements


@exact()
def typed(proto: Any, onnx_type: DType, size: int, path: str, name: str) -> NDArray:
    """The elements in typed fields, as raw_data. Types of 16 bits or fewer are stored in int32_data as codes."""
    field, element = _FIELDS.get(onnx_type.name, ("int32_data", "int32"))
    values = np.array(getattr(proto, field), dtype=element)
    if onnx_type.bits in (2, 4):
        # Each int32 holds one byte of packed codes.
        return values.astype(np.uint8)
    _check_count(path, name, size, values.size)
    if onnx_type.bits == 6:
        return np.asarray(pack_codes(values.astype(np.uint8), 6))
    if onnx_type.family == "bool":
        return np.asarray(values != 0).view(np.uint8)
    if onnx_type.bits <= 32 and field != "float_data":
        values = values.astype(f"<u{onnx_type.bits // 8}")
    return values.astype(values.dtype.newbyteorder("<"), copy=False).view(np.uint8)


def _texts(proto: Any, path: str, name: str) -> list[str]:
    try:
        return [text.decode("utf-8") for text in proto.string_data]
    except UnicodeDecodeError:
        raise FileError(f"{path}: tensor {name!r} has text that is not UTF-8") from None


def _check_count(path: str, name: str, claimed: int, held: int) -> None:
    if claimed != held:
        raise FileError(f"{path}: tensor {name!r} claims {claimed} elements, the file holds {held}")


def number_of(onnx_type: DType, path: str) -> int:
    """The number of a type in ONNX files; FileError for a type that ONNX lacks."""
    if onnx_type.number is None:
        raise FileError(f"{path}: ONNX has no {onnx_type.name}; write .npz or .safetensors")
    return onnx_type.number


class Writer(TensorWriter):
    family = "pb"

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        self._onnx = imported(path)
        if len(plan) != 1:
            raise FileError(f"{path}: .pb holds one tensor, but there are {len(plan)}; write .npz or .safetensors")
        onnx_type = plan[0].dtype
        if onnx_type is not None and onnx_type.nbytes(plan[0].size) > _LARGEST:
            raise FileError(f"{path}: .pb holds less than 2 GiB; write .safetensors")
        self._file, self._path = file, path

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        onnx_type = spec.dtype
        assert onnx_type is not None
        number = number_of(onnx_type, self._path)
        proto = self._onnx.TensorProto(dims=spec.shape, data_type=number, name=spec.name)
        if onnx_type.family == "string":
            nbytes = self._add_texts(proto, spec, chunks)
        else:
            data = io.BytesIO()
            nbytes = raw_data.write(data, onnx_type, chunks)
            proto.raw_data = data.getvalue()
        self._file.write(proto.SerializeToString())
        return nbytes

    def _add_texts(self, proto: Any, spec: Spec, chunks: Iterable[NDArray]) -> int:
        try:
            texts = [text.encode("utf-8") for text in npy.texts(chunks, spec.name, self._path)]
        except UnicodeEncodeError as error:
            raise FileError(
                f"{self._path}: tensor {spec.name!r}: {error.object!r} cannot be written as UTF-8"
            ) from None
        nbytes = sum(map(len, texts))
        if nbytes + 8 * len(texts) > _LARGEST:
            raise FileError(f"{self._path}: .pb holds less than 2 GiB; write .npz")
        proto.string_data.extend(texts)
        return nbytes

    def copy(self, spec: Spec) -> int:
        raise AssertionError("no tensor has the family 'pb'")
