# SPDX-License-Identifier: Apache-2.0
"""What a conversion will do: for every file and tensor, before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gpucast
from gpucast import files
from gpucast.checkpoints import model_config, scale_styles, scaling
from gpucast.checkpoints.choice import Choice, read_as
from gpucast.checkpoints.dequantized import Dequantized
from gpucast.checkpoints.recognise import Catalogue, FileScales
from gpucast.checkpoints.scaling import Scaled
from gpucast.checkpoints.sources import Item, Source, find
from gpucast.checkpoints.stored import Stored
from gpucast.dtypes import DType
from gpucast.files import FileError, Spec, Tensor, TensorFile, onnx_model
from gpucast.rule import resolve

Detail = Literal["counts", "errors", "all"]


@dataclass(frozen=True)
class Request:
    """What is asked for. `attributes`: the keywords of `gpucast.cast`; `source_row`: how raw elements are read."""

    choice: Choice
    attributes: Mapping[str, Any]
    scale: str | None = None
    source_row: DType | None = None
    #: What is worked out about each tensor: what was lost; the largest error as well; all that a report tells.
    detail: Detail = "counts"
    #: How scales are stored: one of `gpucast.checkpoints.scale_styles.STYLES`.
    style: str = scale_styles.STYLES[0]


@dataclass(frozen=True)
class TensorPlan:
    """`row` is what the tensor is cast to, None where it is kept; `bytes_out` is None for text."""

    name: str
    kind: str
    row: DType | None
    shape: tuple[int, ...]
    bytes_in: int
    bytes_out: int | None
    #: The names of the tensors that take its place: its own, and those of its scales.
    names: tuple[str, ...]
    #: Why a tensor that was to be cast is kept.
    why: str = ""


@dataclass(frozen=True)
class FilePlan:
    """A file that is converted, or copied (`tensors` is None)."""

    path: str
    #: Its name in what is written, with slashes.
    name: str
    tensors: tuple[TensorPlan, ...] | None
    #: Sizes and times of the source and its external data, by which a change is noticed.
    identity: tuple[int, ...]
    #: The file of external data that is written beside it, if any.
    external: str | None = None
    #: Which tensors are codes and scales.
    scales: FileScales = field(default_factory=FileScales)
    #: The files of external data that are read.
    data: tuple[str, ...] = ()

    def is_unchanged(self) -> bool:
        """Whether the source is what was planned with."""
        return _identity(self.path, *self.data) == self.identity

    @property
    def bytes_in(self) -> int:
        return self.identity[0] if self.tensors is None else sum(tensor.bytes_in for tensor in self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """All that is written, the file itself last: it refers to the other."""
        return (self.name,) if self.external is None else (self.external, self.name)


@dataclass(frozen=True)
class Plan:
    source: str
    target: str
    request: Request
    files: tuple[FilePlan, ...]
    #: One file becomes one file; else a folder is written.
    single: bool
    #: Names and texts of the indexes.
    indexes: tuple[tuple[str, str], ...] = ()
    #: Metadata of the source that the format of the target has no place for.
    dropped: tuple[str, ...] = ()

    @property
    def converted(self) -> list[tuple[FilePlan, TensorPlan]]:
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.row is not None]

    @property
    def left_alone(self) -> list[tuple[FilePlan, TensorPlan]]:
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.row is None]

    @property
    def fingerprint(self) -> str:
        """Equal for two plans alone whose unfinished work is the same."""
        tensors: list[Any] = [[[*_said(tensor)] for tensor in file.tensors or ()] for file in self.files]
        where = [[file.name, *file.identity, file.tensors is None] for file in self.files]
        asked = self.request
        request = [dict(asked.attributes), asked.scale, asked.style, asked.detail]
        text = json.dumps([gpucast.__version__, where, tensors, request, self.indexes], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _said(tensor: TensorPlan) -> tuple[Any, ...]:
    return tensor.name, tensor.kind, None if tensor.row is None else tensor.row.name, tensor.shape, tensor.names


def make_plan(path: str, target: str, request: Request) -> Plan:
    """FileError for what cannot be done, before any work: bad files, types that cannot be cast or held, names that
    collide. OSError for files that cannot be read."""
    source = find(path, target)
    if request.source_row is not None and not source.single:
        raise FileError(f"{path}: --from is for one file; convert the files one by one")
    if request.style != scale_styles.STYLES[0] and request.scale in (None, "none"):
        raise FileError(f"{path}: --style {request.style} is a way to store scales; give --scale")
    scales = file_scales(source, request)
    planned: list[FilePlan] = []
    beside: set[str] = set()
    dropped: list[str] = []
    for item in source.items:
        plan, data, lost = _file(item, source, target, request, scales.get(item.path, FileScales()))
        planned.append(plan)
        beside |= data
        dropped += lost
    tensors = [tensor for file in planned for tensor in file.tensors or ()]
    cast = any(tensor.row is not None for tensor in tensors)
    names = [tensor.name for tensor in tensors]
    names += [name for file in planned for name in sorted(file.scales.dropped)]
    request.choice.check(names, cast, path)
    # A model's external data is written anew with the model.
    kept = tuple(file for file in planned if file.tensors is not None or os.path.realpath(file.path) not in beside)
    _check_names(kept, target)
    indexes = tuple((name, _index(found, name, kept)) for name, found in source.indexes)
    configs = model_config.texts(kept, request, bool(source.indexes), path)
    indexes += tuple(configs.items())
    kept = tuple(file for file in kept if file.name not in configs)
    return Plan(path, target, request, kept, source.single, indexes, tuple(sorted(dropped)))


def _file(
    item: Item, source: Source, target: str, request: Request, scales: FileScales
) -> tuple[FilePlan, set[str], list[str]]:
    """The plan of a file, the files of external data that it reads, the metadata that it loses."""
    if not item.tensors:
        return FilePlan(item.path, item.name, None, _identity(item.path)), set(), []
    out = target if source.single else item.name
    with TensorFile(item.path) as file:
        opened = Opened(file, request, alone=source.single, scales=scales)
        pairs = [opened.planned(tensor, out) for tensor in opened.tensors]
        plans = tuple(plan for plan, _ in pairs)
        specs = [spec for _, found in pairs for spec in found]
        _check_unique(specs, out)
        external = None
        if file.model is not None and out.lower().endswith(files.MODEL):
            external = item.name + onnx_model.DATA if onnx_model.uses_external(file.model, specs) else None
        # A writer says at once what its format cannot hold.
        metadata = opened.metadata()
        files.check(out, specs, metadata, file.model)
        data = () if file.model is None else tuple(sorted(file.model.locations))
        beside = {os.path.realpath(name) for name in data}
        lost = [] if out.lower().endswith(".safetensors") else list(metadata)
        identified = _identity(item.path, *data)
        return FilePlan(item.path, item.name, plans, identified, external, scales, data), beside, lost


class Opened:
    """The tensors of an open file, as a request reads them, and what becomes of each."""

    def __init__(self, file: TensorFile, request: Request, alone: bool, scales: FileScales) -> None:
        self._path, self._request, self._scales = file.path, request, scales
        self.tensors: list[Tensor] = file.tensors
        if request.source_row is not None:
            self.tensors = read_as(file.tensors, request.source_row, request.choice, file.path)
        self.tensors = _read_as_numbers(self.tensors, scales, file.path)
        self._alone = alone and len(self.tensors) == 1
        self._fixed = file.model.inputs if file.model is not None else set()
        self._metadata = file.metadata
        self._stored: dict[str, Stored] | None = None

    def planned(self, tensor: Tensor, out: str) -> tuple[TensorPlan, Sequence[Spec]]:
        """The plan of a tensor, and the tensors to write into the file `out`."""
        row, why = self._row(tensor, out)
        if row is None:
            specs: list[Spec] = [files.kept(tensor, out)]
        else:
            found = self.scaled(tensor, row)
            if found is not None and not out.lower().endswith(".safetensors"):
                raise FileError(f"{out}: tensors with scales are written to .safetensors files alone")
            specs = [Spec(tensor.name, row, tensor.shape)] if found is None else list(found.specs)
        sizes = [spec.source.nbytes if spec.source else _nbytes(spec) for spec in specs]
        bytes_out = None if None in sizes else sum(size for size in sizes if size is not None)
        kind = tensor.kind if tensor.row is None or isinstance(tensor, Dequantized) else tensor.row.name
        names = tuple(spec.name for spec in specs)
        return TensorPlan(tensor.name, kind, row, tensor.shape, tensor.nbytes, bytes_out, names, why), specs

    def scaled(self, tensor: Tensor, row: DType) -> Scaled | None:
        """How a tensor is cast that gets scales; None where it gets none."""
        stored = self._all_stored().get(tensor.name)
        return None if stored is None else Scaled(tensor, stored)

    def metadata(self) -> dict[str, str]:
        """The metadata of the file that is written."""
        kept = {key: text for key, text in self._metadata.items() if key not in self._scales.metadata}
        return kept | dict(entry for stored in self._all_stored().values() for entry in stored.metadata)

    def _all_stored(self) -> dict[str, Stored]:
        """How the tensors lie that get scales."""
        if self._stored is None:
            request, found = self._request, dict[str, Stored]()
            for tensor in self.tensors:
                row = self._target(tensor)
                decided = None if row is None else _decided(tensor, row, request, self._path)
                if isinstance(decided, Stored):
                    found[tensor.name] = decided
            self._stored = scale_styles.marked(found) if request.style == "comfyui" else found
        return self._stored

    def _target(self, tensor: Tensor) -> DType | None:
        return None if tensor.name in self._scales.kept else self._request.choice.target(tensor, self._alone)

    def _row(self, tensor: Tensor, out: str) -> tuple[DType | None, str]:
        """What a tensor is cast to; None: it is kept, and if it was to be cast, why."""
        choice = self._request.choice
        row = self._target(tensor)
        if row is None:
            return None, ""
        into_model = out.lower().endswith(files.MODEL)
        if into_model and tensor.name in self._fixed and not choice.asked_for(tensor):
            return None, ""
        if tensor.row is None:
            raise FileError(
                f"{self._path}: tensor {tensor.name!r} has type {tensor.kind}, which Cast does not take; "
                "give --from T if these are raw elements of a type T, or leave it out with --exclude"
            )
        resolve(tensor.row, row, **self._request.attributes, who=f"{self._path}: tensor {tensor.name!r}")
        decided = _decided(tensor, row, self._request, self._path)
        return (None, decided) if isinstance(decided, str) else (row, "")


def _decided(tensor: Tensor, row: DType, request: Request, path: str) -> Stored | str | None:
    asked_for = request.choice.asked_for(tensor)
    return scaling.decided(tensor, row, request.scale, request.style, request.attributes, path, asked_for)


def _read_as_numbers(tensors: Sequence[Tensor], scales: FileScales, path: str) -> list[Tensor]:
    """The tensors, those of codes with scales as one each."""
    if not scales.dropped:
        return list(tensors)
    named = {tensor.name: tensor for tensor in tensors}
    numbers: dict[str, Tensor] = {found.name: Dequantized.of(found, named, path) for found in scales.found}
    return [
        numbers.get(tensor.name, tensor)
        for tensor in tensors
        if tensor.name in numbers or tensor.name not in scales.dropped
    ]


def file_scales(source: Source, request: Request) -> dict[str, FileScales]:
    """Which tensors of each file are codes and scales that are read as numbers, and which such tensors are kept.

    FileError where they cannot be read, and were to be cast.
    """
    catalogue = Catalogue()
    for item in source.items:
        if item.tensors and not item.path.lower().endswith(files.MODEL):
            with TensorFile(item.path) as file:
                catalogue.add(item.path, file)

    def is_cast(tensor: Tensor) -> bool:
        row = request.choice.target(tensor)
        return row is not None and not isinstance(_decided(tensor, row, request, source.path), str)

    return catalogue.file_scales(is_cast, request.choice.asked_for, request.choice.excludes)


def _identity(*paths: str) -> tuple[int, ...]:
    """The size and the time of each file."""
    return tuple(number for path in paths for found in [os.stat(path)] for number in (found.st_size, found.st_mtime_ns))


def _nbytes(spec: Spec) -> int | None:
    return None if spec.row is None or spec.row.family == "string" else spec.row.nbytes(spec.size)


def _check_unique(specs: Sequence[Spec], out: str) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise FileError(f"{out}: two tensors would have the name {spec.name!r}")
        seen.add(spec.name)


def _check_names(planned: Sequence[FilePlan], target: str) -> None:
    seen: set[str] = set()
    for name in [name for file in planned for name in file.names]:
        if name.casefold() in seen:
            raise FileError(f"{target}: two files would have the name {name!r}")
        seen.add(name.casefold())


def _index(found: Any, name: str, planned: Sequence[FilePlan]) -> str:
    """The text of the index of what is written."""
    folder = os.path.dirname(name)
    shards = {file.name: file for file in planned}
    weight_map: dict[str, str] = {}
    total = 0
    for shard in found.files:
        shard_name = os.path.normpath(f"{folder}/{shard}" if folder else shard).replace(os.sep, "/")
        if shard_name not in shards:
            raise FileError(f"{found.path}: weight_map names {shard!r}, a hidden file, which is left out; rename it")
        file = shards[shard_name]
        # The names of the source: a tensor of codes may be told by another than that of its numbers.
        told = {tensor.name: tensor.name for tensor in file.tensors or ()}
        told |= dict.fromkeys(file.scales.dropped, "")
        told |= {item.name: item.stored.name for item in file.scales.found if item.stored is not None}
        tensors = {tensor.name: tensor for tensor in file.tensors or ()}
        for tensor_name in [key for key, value in found.weight_map.items() if value == shard]:
            if tensor_name not in told:
                raise FileError(
                    f"{found.path}: weight_map places {tensor_name!r} in {shard!r}, which has no such tensor"
                )
            tensor = tensors.get(told[tensor_name])
            if tensor is not None:
                weight_map |= dict.fromkeys(tensor.names, shard)
                total += tensor.bytes_out or 0
    return str(found.text(dict(sorted(weight_map.items())), total))
