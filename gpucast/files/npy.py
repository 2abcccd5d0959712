# SPDX-License-Identifier: Apache-2.0
"""The .npy format: one tensor. Types that NumPy lacks: see `npy_header`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from gpucast.core import strings
from gpucast.files import npy_header, raw_data
from gpucast.files.tensor import Array, FileError, Spec, StoredTensor, Tensor, check_bytes


def read(file: BinaryIO, path: str) -> tuple[list[Tensor], dict[str, str]]:
    name = os.path.splitext(os.path.basename(path))[0]
    header = npy_header.read(file, path, name)
    start = file.tell()
    check_bytes(path, name, header.nbytes, os.fstat(file.fileno()).st_size - start)

    def data() -> BinaryIO:
        file.seek(start)
        return file

    return [tensor(header, data, path, name)], {}


def tensor(header: npy_header.Header, data: Any, path: str, name: str) -> StoredTensor:
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


class Writer:
    family = "npy"

    def __init__(self, file: BinaryIO, path: str, plan: Sequence[Spec], metadata: Mapping[str, str]) -> None:
        if len(plan) != 1:
            raise FileError(f"{path}: .npy holds one tensor, but there are {len(plan)}; write .npz or .safetensors")
        dtype = plan[0].dtype
        if dtype is not None and dtype.packed:
            raise FileError(f"{path}: .npy cannot hold {dtype.name}, whose elements take {dtype.bits} bits; write .npz")
        self._file, self._path = file, path

    def write(self, spec: Spec, chunks: Iterable[Array]) -> int:
        return write(self._file, spec, chunks, self._path)

    def copy(self, spec: Spec) -> int:
        return copy(self._file, spec)

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        pass


def write(file: BinaryIO, spec: Spec, chunks: Iterable[Array], path: str) -> int:
    """Write header and data of a tensor of whole-byte elements; the number of bytes of data."""
    dtype = spec.dtype
    assert dtype is not None
    if dtype.family == "string":
        array = _text_array(chunks, spec.name, path)
        file.write(npy_header.write(dtype, spec.shape, array.itemsize // 4))
        file.write(array.view(np.uint8).data)
        return array.nbytes
    file.write(npy_header.write(dtype, spec.shape))
    return raw_data.write(file, dtype, chunks)


def copy(file: BinaryIO, spec: Spec) -> int:
    """Write header and data of another .npy file unchanged; the number of bytes of data."""
    assert spec.source is not None
    file.write(spec.source.header)
    for block in spec.source.blocks():
        file.write(block)
    return spec.source.nbytes


def texts(chunks: Iterable[Array], name: str, path: str) -> list[str]:
    """The elements of string chunks as str; bytes are decoded as ASCII, as in a cast."""
    flat: list[str] = []
    try:
        for chunk in chunks:
            flat.extend(strings.texts(chunk, len(flat)))
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: tensor {name!r}: {error}") from None
    return flat


def _text_array(chunks: Iterable[Array], name: str, path: str) -> Array:
    flat = texts(chunks, name, path)
    for index, text in enumerate(flat):
        if text.endswith("\0"):
            raise FileError(
                f"{path}: tensor {name!r}: element {index} ends in NUL, which NumPy's fixed-width text drops; write .pb"
            )
    return np.array(flat, dtype=f"<U{max(1, max(map(len, flat), default=1))}")
