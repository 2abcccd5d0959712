# SPDX-License-Identifier: Apache-2.0
"""ONNX models (.onnx): the initializers of the main graph, in the model file or in external data. Needs onnx.

Data inside the model file is in memory while the model is open; external data is read piece by piece, from files that
are open while they are read.
"""

from __future__ import annotations

import io
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from gpucast.core.places import close_quietly
from gpucast.files import file_limits, onnx_graph, onnx_pb, onnx_weights, raw_data
from gpucast.files.atomic import inside, open_regular
from gpucast.files.tensor import (
    FileError,
    NDArray,
    Spec,
    StoredTensor,
    Tensor,
    check_bytes,
    checked_name,
)
from gpucast.files.tensor import Writer as TensorWriter

#: A protocol buffer holds less than 2 GiB; the rest is reserved for the graph.
_LARGEST = file_limits.PROTOBUF - (1 << 28)
#: Tensors of fewer bytes always stay inside the model: shape inference needs their values.
_SMALL = 1 << 10
#: The fields of TensorProto that hold elements or say where they are.
_DATA = (
    *("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data"),
    *("external_data", "data_location"),
)
#: Alignment of tensors in external data, in bytes: large ones begin on a page, so that they can be memory-mapped.
_PAGE, _ALIGNED, _LARGE = 4096, 64, 1 << 16


def parsed(file: BinaryIO, path: str) -> Any:
    """The ModelProto in an open file. FileError if it holds anything else."""
    proto = onnx_pb.parsed(onnx_pb.imported(path).ModelProto(), file, path, "a model file", "model")
    if not proto.HasField("graph"):
        raise FileError(f"{path}: is no ONNX model: it has no graph")
    return proto


class Model:
    """An ONNX model that is open for reading."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.proto = parsed(file, path)
        if self.proto.training_info:
            raise FileError(f"{path}: the model has training_info: its initializers change, and cannot be converted")
        if self.proto.functions:
            self.proto = onnx_graph.inlined(self.proto, path)
        self._path = path
        #: The sizes of the files of external data, by their paths.
        self._sizes: dict[str, int] = {}
        #: Initializers that a caller may replace: their types are part of the model's interface.
        self.inputs = {value.name for value in self.proto.graph.input}
        onnx_weights.lift_constants(self.proto)
        self.tensors: list[Tensor] = []
        seen: set[str] = set()
        for proto in self.proto.graph.initializer:
            tensor = self._tensor(proto)
            if tensor.name in seen or not tensor.name:
                raise FileError(f"{path}: two initializers have the name {tensor.name!r}, or one has none")
            seen.add(tensor.name)
            self.tensors.append(tensor)
        held = {tensor.name: tensor for tensor in self.tensors}

        def first(name: str, count: int) -> NDArray:
            return next(held[name].pieces(-(-count // 4) * 4))[:count]

        #: For each initializer why it is no weight; "" if it is.
        self.weights = onnx_weights.Graph(self.proto.graph, first).weights()

    @property
    def locations(self) -> set[str]:
        """The paths of the files of external data."""
        return set(self._sizes)

    def _tensor(self, proto: Any) -> StoredTensor:
        path, name = self._path, checked_name(proto.name, self._path)
        shape = onnx_pb.shape_of(proto, path, name)
        onnx_type, kind = onnx_pb.type_of(proto)
        if onnx_type is not None and onnx_type.family == "string":
            # Text in models is small; it is kept unchanged.
            onnx_type = None
        if proto.data_location == proto.EXTERNAL:
            open_data, nbytes = self._external(proto, name)
        elif onnx_type is None:
            # Only copied, so the way it is stored does not matter.
            serialized = proto.SerializeToString()
            open_data, nbytes = (lambda: io.BytesIO(serialized)), len(serialized)
        elif proto.HasField("raw_data"):
            open_data, nbytes = (lambda: io.BytesIO(proto.raw_data)), len(proto.raw_data)
        else:
            raw = onnx_pb.typed(proto, onnx_type, math.prod(shape), path, name)
            open_data, nbytes = (lambda: io.BytesIO(raw.tobytes())), raw.size
        if onnx_type is not None:
            check_bytes(path, name, onnx_type.nbytes(math.prod(shape)), nbytes)
        element = None if onnx_type is None or onnx_type.packed else onnx_type.code_numpy.newbyteorder("<")
        return StoredTensor(name, onnx_type, shape, kind, nbytes, path, Writer.family, open_data, element)

    def _external(self, proto: Any, name: str) -> tuple[Callable[[], BinaryIO], int]:
        path = self._path
        entries = {entry.key: entry.value for entry in proto.external_data}
        if not all(isinstance(text, str) for entry in entries.items() for text in entry):
            # Protobuf gives text that is not UTF-8 as bytes.
            raise FileError(f"{path}: tensor {name!r}: what it says about external data is no text")
        folder = os.path.dirname(path) or "."
        location = inside(folder, entries.get("location", ""), path, f"tensor {name!r}: location")
        if location not in self._sizes:
            self._sizes[location] = os.stat(location).st_size
        held = self._sizes[location]
        offset = _number(entries.get("offset", "0"), path, name)
        length = _number(entries.get("length", str(max(0, held - offset))), path, name)
        if offset + length > held:
            raise FileError(
                f"{path}: tensor {name!r} claims bytes {offset} to {offset + length} of {entries['location']}, "
                f"which holds {held}"
            )

        def open_data() -> BinaryIO:
            file = _opened(location)
            file.seek(offset)
            return file

        return open_data, length


def _opened(path: str) -> BinaryIO:
    """A file of external data. A model may have thousands, so each is closed when nobody reads it any more."""
    with open_regular(path) as opened:
        handle = os.dup(opened.fileno())
    file = open(handle, "rb", closefd=False)
    weakref.finalize(file, close_quietly, handle)
    return file


def _number(text: str, path: str, name: str) -> int:
    if not text.isdecimal() or len(text) > file_limits.DIGITS:
        raise FileError(f"{path}: tensor {name!r}: {text!r} is no offset or length of external data")
    return int(text)


class Writer(TensorWriter):
    """Writes a model with new types of initializers. It changes the `model` that was read, which cannot be used again.

    External data goes into one file next to the model, which `external` opens. If the model would exceed the limit of
    protocol buffers, all large tensors go there.
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
        self._linear = {spec.name: spec.linear for spec in plan if spec.linear is not None}
        new = _added(plan)
        unknown = [spec.name for spec in plan if spec.name not in self._protos and spec.name not in new]
        if unknown:
            raise FileError(f"{path}: the model has no initializer {unknown[0]!r}")
        onnx_graph.check_linear(model.proto, self._linear, new, {spec.name: spec.dtype for spec in plan}, path)
        changes = {spec.name: spec.dtype for spec in plan if spec.source is None and spec.dtype is not None}
        changes = {name: dtype for name, dtype in changes.items() if name not in new}
        onnx_graph.check(model.proto, changes, path)
        self._before = {name: self._protos[name].data_type for name in changes}
        self._external = uses_external(model, plan)
        self._location = os.path.basename(path) + DATA
        self._data = external() if self._external else None
        self._position = 0

    def write(self, spec: Spec, chunks: Iterable[NDArray]) -> int:
        onnx_type = spec.dtype
        assert onnx_type is not None
        if spec.name in self._external:
            offset = self._place(onnx_type.nbytes(spec.size))
            assert self._data is not None
            nbytes = raw_data.write(self._data, onnx_type, chunks)
            self._refer(spec, offset, nbytes)
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
            self._refer(spec, offset, spec.source.nbytes)
        elif self._protos[spec.name].external_data:
            data = b"".join(spec.source.blocks())
            self._empty(spec).raw_data = data
        return spec.source.nbytes

    def finish(self) -> None:
        onnx_graph.retype(self._model.proto, self._before)
        onnx_graph.dequantize(self._model.proto, self._linear)
        self._file.write(self._model.proto.SerializeToString())

    def _place(self, nbytes: int) -> int:
        """Reserve space for a tensor of `nbytes` in external data; its offset."""
        assert self._data is not None
        step = _PAGE if nbytes >= _LARGE else _ALIGNED
        padding = -self._position % step
        self._data.write(bytes(padding))
        offset = self._position + padding
        self._position = offset + nbytes
        return offset

    def _empty(self, spec: Spec) -> Any:
        """The proto of an initializer, cleared of its data and with its new type."""
        if spec.name not in self._protos:
            proto = self._protos[spec.name] = self._model.proto.graph.initializer.add()
            proto.name = spec.name
            proto.dims.extend(spec.shape)
        proto = self._protos[spec.name]
        for field in _DATA:
            proto.ClearField(field)
        if spec.dtype is not None:
            proto.data_type = onnx_pb.number_of(spec.dtype, self._path)
        return proto

    def _refer(self, spec: Spec, offset: int, nbytes: int) -> None:
        proto = self._empty(spec)
        proto.data_location = type(proto).EXTERNAL
        for key, value in (("location", self._location), ("offset", offset), ("length", nbytes)):
            entry = proto.external_data.add()
            entry.key, entry.value = key, str(value)


#: The name of the file of external data is the model's name with this suffix.
DATA = ".data"


def uses_external(model: Model, plan: Sequence[Spec]) -> set[str]:
    """The names of the tensors that will be in external data.

    These are the large tensors that are external now, or all large tensors if the model file would get too large.
    """
    protos = {proto.name: proto for proto in model.proto.graph.initializer}
    sizes = {spec.name: spec.source.nbytes if spec.source else _nbytes(spec) for spec in plan}
    large = {spec.name for spec in plan if sizes[spec.name] >= _SMALL and spec.dtype is not None}
    of = {spec.name: spec.linear.of for spec in plan if spec.linear is not None}
    # New ones are where the one is that they come from; scales are within the model.
    known = {name: protos[of.get(name, name)] for name in large if of.get(name, name) in protos}
    external = {name for name, proto in known.items() if proto.data_location == type(proto).EXTERNAL}
    within = sum(size for name, size in sizes.items() if name not in external)
    return large if within > _LARGEST else external


def _added(plan: Sequence[Spec]) -> set[str]:
    """The names of the initializers that a model gets."""
    linear = [(spec.name, spec.linear) for spec in plan if spec.linear is not None]
    return {name for codes, one in linear for name in (codes, one.scales, one.zero_points) if name is not None}


def _nbytes(spec: Spec) -> int:
    assert spec.dtype is not None
    return spec.dtype.nbytes(spec.size)
