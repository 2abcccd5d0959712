# SPDX-License-Identifier: Apache-2.0
"""The .npy format (numpy.lib.format, versions 1.0 to 3.0): one tensor, also of types that NumPy lacks.

NumPy saves ml_dtypes arrays without their type: as void ('<V1', '<V2'), and float8_e5m2 as '<f1', which it then
refuses to load. Here such a tensor is saved as a structured array of one field whose name is the type:
[('float8_e5m2', '|u1')]. Its shape stays; ``numpy.load(path).view(ml_dtypes.float8_e5m2)`` gives the values in plain
NumPy, and ``numpy.load(path)['float8_e5m2']`` the codes.
"""

from __future__ import annotations

import ast
import io
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from gpucast.core import strings
from gpucast.core.dtypes import DType, dtype
from gpucast.files import file_limits, raw_data
from gpucast.files.tensor import FileError, NDArray, Spec, StoredTensor, Tensor, check_bytes, checked_lengths
from gpucast.files.tensor import Writer as TensorWriter

_BYTE_ORDERS = "<>=|"


@dataclass(frozen=True)
class Header:
    """A header. `element` is the NumPy dtype of a stored element; `dtype` is None for types that Cast does not take."""

    dtype: DType | None
    element: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    kind: str
    raw: bytes

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.element.itemsize


def is_builtin(onnx_type: DType) -> bool:
    """Whether NumPy itself has the type."""
    return onnx_type.numpy.isbuiltin == 1


def header_of(onnx_type: DType, shape: tuple[int, ...], width: int = 0) -> bytes:
    """The header of a tensor of whole-byte elements. For STRING `width` is the length of the longest text."""
    descr: object
    if onnx_type.family == "string":
        descr = f"<U{max(1, width)}"
    elif is_builtin(onnx_type):
        descr = onnx_type.numpy.newbyteorder("<").str
    else:
        descr = onnx_type.numpy_field.newbyteorder("<").descr
    buffer = io.BytesIO()
    fields: dict[str, Any] = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def read_header(stream: BinaryIO, path: str, name: str) -> Header:
    """Read the header, up to the first byte of data. FileError if it is malformed."""

    def take(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise FileError(f"{path}: tensor {name!r}: the .npy header is truncated")
        return data

    start = take(8)
    if start[:6] != b"\x93NUMPY":
        raise FileError(f"{path}: tensor {name!r}: not in .npy format (it begins with {start[:6]!r})")
    version = (start[6], start[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise FileError(f"{path}: tensor {name!r}: .npy version {version[0]}.{version[1]} is unknown")
    field = take(2 if version == (1, 0) else 4)
    length = int.from_bytes(field, "little")
    if length > file_limits.NPY_HEADER:
        raise FileError(
            f"{path}: tensor {name!r}: the .npy header claims {length} bytes; expected at most {file_limits.NPY_HEADER}"
        )
    text = take(length)
    descr, fortran, shape = _fields(text, "utf-8" if version == (3, 0) else "latin-1", path, name)
    onnx_type, element = _type(descr, path, name)
    lengths = checked_lengths(shape, path, name)
    if element.itemsize == 0 and 0 not in lengths:
        raise FileError(f"{path}: tensor {name!r}: elements of {descr!r} take no bytes")
    if 0 in lengths and math.prod(n for n in lengths if n) * element.itemsize >= 1 << 63:
        # NumPy does not make such an array, though it has no elements.
        raise FileError(f"{path}: tensor {name!r}: {descr!r} of shape {lengths} takes 2^63 bytes or more")
    # With one length at most there is one order.
    fortran = fortran and len(lengths) > 1
    return Header(onnx_type, element, lengths, fortran, str(descr), start + field + text)


def _fields(text: bytes, encoding: str, path: str, name: str) -> tuple[object, bool, object]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fields = ast.literal_eval(text.decode(encoding).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise FileError(f"{path}: tensor {name!r}: the .npy header is no dictionary of descr, fortran_order and shape")
    if not isinstance(fields["fortran_order"], bool) or not isinstance(fields["shape"], tuple):
        raise FileError(f"{path}: tensor {name!r}: fortran_order or shape in the .npy header is malformed")
    return fields["descr"], fields["fortran_order"], fields["shape"]


def _type(descr: Any, path: str, name: str) -> tuple[DType | None, np.dtype[Any]]:
    """The type as Cast knows it (None if it does not), and the NumPy dtype of a stored element."""
    if isinstance(descr, str) and descr.lstrip(_BYTE_ORDERS) == "f1":
        # NumPy writes float8_e5m2 like this; it is the only type of ml_dtypes whose kind is 'f'.
        return dtype("FLOAT8E5M2"), np.dtype(np.uint8)
    named = _named(descr)
    if named is not None:
        return named
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            element = np.lib.format.descr_to_dtype(descr)
    except Exception:
        # NumPy's parser raises errors of many types.
        raise FileError(f"{path}: tensor {name!r}: the .npy header has the unknown type {descr!r}") from None
    if element.hasobject:
        raise FileError(
            f"{path}: tensor {name!r} holds pickled Python objects, which gpucast never loads; save text as NumPy's <U"
        )
    try:
        return dtype(element), element
    except TypeError:
        return None, element


def _named(descr: object) -> tuple[DType, np.dtype[Any]] | None:
    """The type named by the only field of a structured dtype, as gpucast writes it; None for other descriptions."""
    if not (isinstance(descr, list) and len(descr) == 1 and isinstance(descr[0], tuple) and len(descr[0]) == 2):
        return None
    try:
        onnx_type = dtype(descr[0][0])
    except TypeError:
        return None
    if onnx_type.family == "string" or onnx_type.packed or is_builtin(onnx_type):
        return None
    field = onnx_type.numpy_field.newbyteorder("<")
    return (onnx_type, field[0]) if descr == field.descr else None


def read(file: BinaryIO, path: str) -> tuple[list[Tensor], dict[str, str]]:
    name = os.path.splitext(os.path.basename(path))[0]
    header = read_header(file, path, name)
    start = file.tell()
    check_bytes(path, name, header.nbytes, os.fstat(file.fileno()).st_size - start)

    def data() -> BinaryIO:
        file.seek(start)
        return file

    return [tensor(header, data, path, name)], {}


def tensor(header: Header, data: Any, path: str, name: str) -> StoredTensor:
    return StoredTensor(
        name=name,
        dtype=header.dtype,
        shape=header.shape,
        kind=header.kind,
        nbytes=header.nbytes,
        path=path,
        family="npy",
        open=data,
        element=header.element,
        fortran=header.fortran,
        header=header.raw,
    )


class Writer(TensorWriter):
    family = "npy"

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        if len(plan) != 1:
            raise FileError(f"{path}: .npy holds one tensor, but there are {len(plan)}; write .npz or .safetensors")
        dtype = plan[0].dtype
        if dtype is not None and dtype.packed:
            raise FileError(f"{path}: .npy cannot hold {dtype.name}, whose elements take {dtype.bits} bits; write .npz")
        self._file, self._path = file, path

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        return write(self._file, spec, chunks, self._path)

    def copy(self, spec: Spec) -> int:
        return copy(self._file, spec)


def write(file: BinaryIO, spec: Spec, chunks: Iterable[NDArray], path: str) -> int:
    """Write header and data of a tensor of whole-byte elements; the number of bytes of data."""
    dtype = spec.dtype
    assert dtype is not None
    if dtype.family == "string":
        array = _text_array(chunks, spec.name, path)
        file.write(header_of(dtype, spec.shape, array.itemsize // 4))
        file.write(array.view(np.uint8).data)
        return array.nbytes
    file.write(header_of(dtype, spec.shape))
    return raw_data.write(file, dtype, chunks)


def copy(file: BinaryIO, spec: Spec) -> int:
    """Write header and data of another .npy file unchanged; the number of bytes of data."""
    assert spec.source is not None
    file.write(spec.source.header)
    for block in spec.source.blocks():
        file.write(block)
    return spec.source.nbytes


def texts(chunks: Iterable[NDArray], name: str, path: str) -> list[str]:
    """The elements of string chunks as str; bytes are decoded as ASCII, as in a cast."""
    flat: list[str] = []
    try:
        for chunk in chunks:
            flat.extend(strings.texts(chunk, len(flat)))
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: tensor {name!r}: {error}") from None
    return flat


def _text_array(chunks: Iterable[NDArray], name: str, path: str) -> NDArray:
    flat = texts(chunks, name, path)
    for index, text in enumerate(flat):
        if text.endswith("\0"):
            raise FileError(
                f"{path}: tensor {name!r}: element {index} ends in NUL, which NumPy's fixed-width text drops; write .pb"
            )
    return np.array(flat, dtype=f"<U{max(1, max(map(len, flat), default=1))}")
