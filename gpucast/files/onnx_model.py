# SPDX-License-Identifier: Apache-2.0
"""ONNX models (.onnx): the initializers of the main graph, in the model or in files beside it. Needs the onnx package.

Data in the model is in memory while the model is open, as protocol buffers are; external data is read piece by piece.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from gpucast.core.dtypes import DType, dtype
from gpucast.files import onnx_graph, onnx_pb, raw_data
from gpucast.files.inside import inside
from gpucast.files.tensor import (
    Array,
    FileError,
    Spec,
    StoredTensor,
    Tensor,
    check_bytes,
    checked_lengths,
    checked_name,
)

#: Protocol buffers end at 2 GiB; the rest is for the graph.
_LARGEST = (1 << 31) - (1 << 28)
#: Tensors of fewer bytes are in the model whatever happens to the others: shapes are inferred from them.
_SMALL = 1 << 10
#: The fields of TensorProto that hold elements, or tell where they are.
_DATA = (
    *("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data"),
    *("external_data", "data_location"),
)
#: Where tensors begin in external data: pages, which can be mapped, for large ones.
_PAGE, _ALIGNED, _LARGE = 4096, 64, 1 << 16


class Model:
    """A model that is open for reading."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        onnx = onnx_pb.imported(path)
        size = os.fstat(file.fileno()).st_size
        if size >= 1 << 31:
            raise FileError(f"{path}: has {size} bytes; a model file holds less than 2 GiB")
        self.proto = onnx.ModelProto()
        try:
            self.proto.ParseFromString(file.read())
        except Exception as error:
            # The error's type depends on how protobuf was built.
            raise FileError(f"{path}: is no ONNX model: {error}") from None
        if not self.proto.HasField("graph"):
            raise FileError(f"{path}: is no ONNX model: it has no graph")
        if self.proto.training_info:
            raise FileError(f"{path}: the model has training_info: its initializers change, and cannot be converted")
        self._onnx, self._path = onnx, path
        self._files: dict[str, BinaryIO] = {}
        #: Initializers that a caller may replace: their types are part of the model's interface.
        self.inputs = {value.name for value in self.proto.graph.input}
        self.tensors: list[Tensor] = []
        seen: set[str] = set()
        try:
            for proto in self.proto.graph.initializer:
                tensor = self._tensor(proto)
                if tensor.name in seen or not tensor.name:
                    raise FileError(f"{path}: two initializers have the name {tensor.name!r}, or one has none")
                seen.add(tensor.name)
                self.tensors.append(tensor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    @property
    def locations(self) -> set[str]:
        """The paths of the files of external data."""
        return set(self._files)

    def _tensor(self, proto: Any) -> StoredTensor:
        path, name = self._path, checked_name(proto.name, self._path)
        shape = checked_lengths(list(proto.dims), path, name)
        if proto.HasField("segment"):
            raise FileError(f"{path}: tensor {name!r} is a segment of a larger tensor, which is not supported")
        onnx_type, kind = _dtype(self._onnx, proto.data_type)
        if proto.data_location == self._onnx.TensorProto.EXTERNAL:
            opened, nbytes = self._external(proto, name)
        elif onnx_type is None:
            # It is only kept, whatever way it is stored in.
            whole = proto.SerializeToString()
            opened, nbytes = (lambda: io.BytesIO(whole)), len(whole)
        elif proto.HasField("raw_data"):
            opened, nbytes = (lambda: io.BytesIO(proto.raw_data)), len(proto.raw_data)
        else:
            raw = onnx_pb.typed(proto, onnx_type, math.prod(shape), path, name)
            opened, nbytes = (lambda: io.BytesIO(raw.tobytes())), raw.size
        if onnx_type is not None:
            check_bytes(path, name, onnx_type.nbytes(math.prod(shape)), nbytes)
        element = None if onnx_type is None or onnx_type.packed else onnx_type.code_numpy.newbyteorder("<")
        return StoredTensor(name, onnx_type, shape, kind, nbytes, path, Writer.family, opened, element)

    def _external(self, proto: Any, name: str) -> tuple[Callable[[], BinaryIO], int]:
        path = self._path
        told = {entry.key: entry.value for entry in proto.external_data}
        if not all(isinstance(text, str) for entry in told.items() for text in entry):
            # What is no UTF-8 comes as bytes.
            raise FileError(f"{path}: tensor {name!r}: what it says about external data is no text")
        found = inside(os.path.dirname(path) or ".", told.get("location", ""), path, f"tensor {name!r}: location")
        file = self._files.get(found)
        if file is None:
            file = self._files[found] = open(found, "rb")
        held = os.fstat(file.fileno()).st_size
        offset = _number(told.get("offset", "0"), path, name)
        length = _number(told.get("length", str(max(0, held - offset))), path, name)
        if offset + length > held:
            raise FileError(
                f"{path}: tensor {name!r} claims bytes {offset} to {offset + length} of {told['location']}, "
                f"which holds {held}"
            )

        def opened() -> BinaryIO:
            file.seek(offset)
            return file

        return opened, length


def _dtype(onnx: Any, number: int) -> tuple[DType | None, str]:
    try:
        onnx_type = dtype(number)
    except TypeError:
        known = number in onnx.TensorProto.DataType.values()
        return None, onnx.TensorProto.DataType.Name(number) if known else f"ONNX type {number}"
    # Text in models is small and kept as it is.
    return (None if onnx_type.family == "string" else onnx_type), onnx_type.name


def _number(text: str, path: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 19:
        raise FileError(f"{path}: tensor {name!r}: {text!r} is no offset or length of external data")
    return int(text)


class Writer:
    """Writes a model again, with other types of initializers; the model that was read is used up by it.

    External data goes into one file beside the model, `external` opens it; so does the data of a model that would
    outgrow protocol buffers.
    """

    family = "onnx"

    def __init__(
        self,
        file: BinaryIO,
        path: str,
        plan: Sequence[Spec],
        metadata: Mapping[str, str],
        model: Model | None = None,
        external: Callable[[], BinaryIO] | None = None,
    ) -> None:
        if model is None or external is None:
            raise FileError(f"{path}: an .onnx file can be made from an .onnx file alone; write .safetensors")
        self._file, self._path, self._model = file, path, model
        self._protos = {proto.name: proto for proto in model.proto.graph.initializer}
        unknown = [spec.name for spec in plan if spec.name not in self._protos]
        if unknown:
            raise FileError(f"{path}: the model has no initializer {unknown[0]!r}")
        changes = {spec.name: spec.dtype for spec in plan if spec.source is None and spec.dtype is not None}
        onnx_graph.check(model.proto, changes, path)
        self._before = {name: self._protos[name].data_type for name in changes}
        self._external = uses_external(model, plan)
        self._location = os.path.basename(path) + DATA
        self._data = external() if self._external else None
        self._position = 0

    def write(self, spec: Spec, chunks: Iterable[Array]) -> int:
        onnx_type = spec.dtype
        assert onnx_type is not None
        if spec.name in self._external:
            offset = self._place(onnx_type.nbytes(spec.size))
            assert self._data is not None
            nbytes = raw_data.write(self._data, onnx_type, chunks)
            self._keep(spec, offset, nbytes)
            return nbytes
        data = io.BytesIO()
        nbytes = raw_data.write(data, onnx_type, chunks)
        proto = self._empty(spec)
        proto.raw_data = data.getvalue()
        return nbytes

    def copy(self, spec: Spec) -> int:
        assert isinstance(spec.source, StoredTensor)
        if spec.name in self._external:
            offset = self._place(spec.source.nbytes)
            assert self._data is not None
            for block in spec.source.blocks():
                self._data.write(block)
            self._keep(spec, offset, spec.source.nbytes)
        elif self._protos[spec.name].external_data:
            data = b"".join(spec.source.blocks())
            self._empty(spec).raw_data = data
        return spec.source.nbytes

    def finish(self) -> None:
        onnx_graph.retype(self._model.proto, self._before)
        self._file.write(self._model.proto.SerializeToString())

    def abort(self) -> None:
        pass

    def _place(self, nbytes: int) -> int:
        """The offset of the next tensor in external data."""
        assert self._data is not None
        step = _PAGE if nbytes >= _LARGE else _ALIGNED
        padding = -self._position % step
        self._data.write(bytes(padding))
        offset = self._position + padding
        self._position = offset + nbytes
        return offset

    def _empty(self, spec: Spec) -> Any:
        """The proto of an initializer, without its data."""
        proto = self._protos[spec.name]
        for field in _DATA:
            proto.ClearField(field)
        if spec.dtype is not None:
            proto.data_type = spec.dtype.number
        return proto

    def _keep(self, spec: Spec, offset: int, nbytes: int) -> None:
        proto = self._empty(spec)
        proto.data_location = type(proto).EXTERNAL
        for key, value in (("location", self._location), ("offset", offset), ("length", nbytes)):
            entry = proto.external_data.add()
            entry.key, entry.value = key, str(value)


#: What the name of a file of external data adds to the model's.
DATA = ".data"


def uses_external(model: Model, plan: Sequence[Spec]) -> set[str]:
    """The tensors whose data will lie beside the model: large ones that do now, or all large ones of a model that would
    outgrow protocol buffers."""
    protos = {proto.name: proto for proto in model.proto.graph.initializer}
    sizes = {spec.name: spec.source.nbytes if spec.source else _nbytes(spec) for spec in plan}
    large = {spec.name for spec in plan if sizes[spec.name] >= _SMALL and spec.dtype is not None}
    external = {name for name in large if protos[name].data_location == type(protos[name]).EXTERNAL}
    within = sum(size for name, size in sizes.items() if name not in external)
    return large if within > _LARGEST else external


def _nbytes(spec: Spec) -> int:
    assert spec.dtype is not None
    return spec.dtype.nbytes(spec.size)
