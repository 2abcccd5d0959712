# SPDX-License-Identifier: Apache-2.0
"""Files that are put together from tensors of others: a checkpoint in shards of some size, or merged into one file.

Tensors keep their order. Codes and scales that an entry of the metadata describes stay in one file with that entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucast.checkpoints.planning.plan import FilePlan
from gpucast.checkpoints.planning.tensor_plan import Request, TensorPlan, TensorPlanner
from gpucast.checkpoints.scales import comfyui
from gpucast.checkpoints.scales.scale_styles import ENTRY, described_by
from gpucast.files import FileError, Tensor, TensorFile
from gpucast.files.onnx_model import Model

#: The tensors of a unit that is not divided, each with the plan of the file that it is read from.
_Unit = list[tuple[FilePlan, TensorPlan]]


def merged(files: Sequence[FilePlan], name: str) -> FilePlan:
    """All tensors of `files` in one file. FileError where they cannot be in one."""
    return _gathered([pair for unit in _units(files) for pair in unit], name)


def split(files: Sequence[FilePlan], limit: int, stem: str) -> list[FilePlan]:
    """All tensors of `files` in shards of at most `limit` bytes of tensors; what is larger alone has one of its own.

    One shard is called STEM.safetensors, several STEM-00001-of-00002.safetensors and so on.
    """
    shards: list[_Unit] = []
    room = 0
    for unit in _units(files):
        size = sum(tensor.bytes_out or 0 for _, tensor in unit)
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1] += unit
        room -= size
    if len(shards) == 1:
        return [_gathered(shards[0], f"{stem}.safetensors")]
    count = len(shards)
    return [_gathered(shard, f"{stem}-{i:05}-of-{count:05}.safetensors") for i, shard in enumerate(shards, 1)]


def _units(files: Sequence[FilePlan]) -> list[_Unit]:
    units: dict[str, _Unit] = {}
    places: dict[str, str] = {}
    for file in files:
        if comfyui.METADATA in file.metadata:
            raise FileError(
                f"{file.path}: its metadata tell of the scales of this file as it is; cast all its weights, or convert "
                "it alone"
            )
        for tensor in file.tensors or ():
            for name in tensor.names:
                if name in places:
                    raise FileError(f"{file.path}: tensor {name!r} is in {places[name]}, too")
                places[name] = file.path
            units.setdefault(described_by(tensor.name, file.metadata), []).append((file, tensor))
    return list(units.values())


def _gathered(pairs: _Unit, name: str) -> FilePlan:
    chosen: dict[str, list[TensorPlan]] = {}
    files = {file.path: file for file, _ in pairs}
    for file, tensor in pairs:
        chosen.setdefault(file.path, []).append(tensor)
    parts = tuple(dataclasses.replace(files[path], tensors=tuple(chosen[path])) for path in chosen)
    tensors = tuple(tensor for part in parts for tensor in part.tensors or ())
    identity = tuple(dict.fromkeys(known for part in parts for known in part.identity))
    return FilePlan(parts[0].path, name, tensors, identity, metadata=_metadata(parts), parts=parts)


def _metadata(parts: Sequence[FilePlan]) -> dict[str, str]:
    """What all sources say that say something; of single tensors, what is said of those that are here."""
    found: dict[str, set[str]] = {}
    for part in parts:
        here = {tensor.name for tensor in part.tensors or ()}
        for key, text in part.metadata.items():
            if not key.startswith(ENTRY) or key.removeprefix(ENTRY) in here:
                found.setdefault(key, set()).add(text)
    return {key: text for key, texts in found.items() for text in texts if len(texts) == 1}


def lost_metadata(file: FilePlan) -> list[str]:
    """The keys of which its sources say different things, so that it has none of them."""
    return [
        key for part in file.parts for key in part.metadata if key not in file.metadata and not key.startswith(ENTRY)
    ]


@dataclass(frozen=True)
class Opened:
    """The tensors that a written file is made from, in the order of its plan, and what plans each of them."""

    tensors: list[Tensor]
    planners: list[TensorPlanner]
    #: The model of an .onnx file.
    model: Model | None


@contextlib.contextmanager
def opened(file: FilePlan, request: Request, alone: bool) -> Iterator[Opened]:
    """The open sources of a file. FileError, OSError."""
    found = Opened([], [], None)
    with contextlib.ExitStack() as stack:
        for part in file.sources:
            source = stack.enter_context(TensorFile(part.path))
            planner = TensorPlanner(source, request, alone, part.scales, part.groups)
            tensors = planner.tensors
            if file.parts:
                named = {tensor.name: tensor for tensor in tensors}
                tensors = [named[tensor.name] for tensor in part.tensors or ()]
            found.tensors.extend(tensors)
            found.planners.extend([planner] * len(tensors))
        yield dataclasses.replace(found, model=None if file.parts else source.model)
