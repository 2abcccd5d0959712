# SPDX-License-Identifier: Apache-2.0
"""Opens and creates tensor files. The suffix of the name selects the format."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines
from gpucast.files import npy, npz, onnx_model, onnx_pb, safetensors, strangers
from gpucast.files.atomic import open_regular, replacing
from gpucast.files.tensor import FileError, NDArray, Spec, StoredTensor, Tensor, Writer

_MODULES: dict[str, Any] = {".npy": npy, ".npz": npz, ".pb": onnx_pb, ".safetensors": safetensors}
#: The formats that tensors can be saved in.
SUFFIXES = tuple(_MODULES)
#: An ONNX model has more than tensors, so it can only be made from another model.
MODEL = ".onnx"
_MODULES[MODEL] = onnx_model


class TensorFile:
    """A file open for reading: its `tensors`, whose elements are read on demand, and its `metadata`.

    `model` is the model of an .onnx file, None for other formats. A context manager. FileError if the file is
    malformed, OSError if it cannot be read.
    """

    def __init__(self, path: str) -> None:
        module = _module(path)
        self.path = path
        self._file: BinaryIO = open_regular(path)
        self._beside: dict[str, TensorFile] = {}
        self.model: onnx_model.Model | None = None
        self.metadata: dict[str, str] = {}
        try:
            strangers.check(self._file, path, os.path.splitext(path)[1].lower())
            self.tensors: list[Tensor]
            if module is onnx_model:
                self.model = onnx_model.Model(self._file, path)
                self.tensors = self.model.tensors
            else:
                self.tensors, self.metadata = module.read(self._file, path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._beside.values():
            file.__exit__(None, None, None)
        self._file.close()

    def beside(self, path: str) -> TensorFile:
        """Another file, or this one: opened once, and open as long as this one."""
        if path == self.path:
            return self
        if path not in self._beside:
            self._beside[path] = TensorFile(path)
        return self._beside[path]

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}


@contextlib.contextmanager
def create(path: str, plan: Sequence[Spec], metadata: Mapping[str, str] | None = None) -> Iterator[Writer]:
    """A writer for the tensors of `plan`. When the block ends without an error, the file replaces the one at `path`."""
    _module(path)
    with replacing(path) as file, writing(file, path, plan, metadata) as writer:
        yield writer


@contextlib.contextmanager
def writing(
    file: BinaryIO,
    path: str,
    plan: Sequence[Spec],
    metadata: Mapping[str, str] | None = None,
    model: onnx_model.Model | None = None,
    external: Callable[[], BinaryIO] | None = None,
) -> Iterator[Writer]:
    """A writer into an open file, in the format of `path`.

    .onnx also needs the `model` that was read, and `external`, which opens the file for external data.
    """
    module = _module(path)
    more = {"model": model, "external": external} if module is onnx_model else {}
    writer: Writer = module.Writer(file, path, plan, metadata or {}, **more)
    try:
        yield writer
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def check(path: str, plan: Sequence[Spec], metadata: Mapping[str, str], model: onnx_model.Model | None = None) -> None:
    """FileError if the format of `path` cannot hold the tensors of `plan`."""
    module = _module(path)
    more = {"model": model, "external": io.BytesIO} if module is onnx_model else {}
    module.Writer(io.BytesIO(), path, plan, metadata, **more).abort()


def kept(tensor: Tensor, path: str) -> Spec:
    """The plan for a tensor that is copied to the file at `path`: byte by byte if both files have the same format."""
    if isinstance(tensor, StoredTensor) and tensor.family == _module(path).Writer.family:
        return Spec(tensor.name, tensor.dtype, tensor.shape, tensor, is_plain=tensor.is_plain)
    if tensor.dtype is None:
        raise FileError(f"{path}: cannot take over tensor {tensor.name!r} of type {tensor.kind} from another format")
    return Spec(tensor.name, tensor.dtype, tensor.shape)


def load(path: str) -> dict[str, NDArray]:
    """All tensors of a file by name, as they are stored: types that NumPy lacks are ml_dtypes arrays, never packed, and
    codes and scales are apart. `gpucast.load` gives what was saved."""
    with TensorFile(path) as file:
        return {tensor.name: tensor.read() for tensor in file.tensors}


def on_host(x: Any) -> NDArray:
    """An array or PackedArray of any device as an unpacked NumPy array."""
    x = engines.to_host(x)
    return np.asarray(x.get() if isinstance(x, PackedArray) else x)


def _module(path: str) -> Any:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _MODULES:
        raise FileError(f"{path}: unknown format {suffix!r}; expected one of {', '.join(_MODULES)}")
    return _MODULES[suffix]
