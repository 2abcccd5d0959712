# SPDX-License-Identifier: Apache-2.0
"""Detects the tensors of a checkpoint that are codes with scales, by the names that the styles give them.

The names are those of `gpucast.convert.scales.scale_styles`, and of NVIDIA's ModelOpt for NVFP4: X.weight UINT8
(two codes to a byte), X.weight_scale FLOAT8E4M3FN, X.weight_scale_2 FLOAT, which multiplies (vLLM,
quantization/modelopt.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucast.convert.scales import comfyui
from gpucast.convert.scales.declared import Declared
from gpucast.convert.scales.dequantized import DetectedTensor
from gpucast.convert.scales.forms import SOURCES, Source, is_narrow, stored_by_gpucast, stored_by_others
from gpucast.convert.scales.scale_styles import ENTRY
from gpucast.files import FileError, Tensor, TensorFile
from gpucast.files.tensor import LoadedTensor

#: Tensors up to this many bytes that describe another one are read at once: they are needed after the file is closed.
_SMALL = 1 << 12


@dataclass
class _File:
    file: TensorFile
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    #: ComfyUI's descriptions of layers in the metadata.
    layers: comfyui.Layers | None


@dataclass
class Catalogue:
    """All tensors of a checkpoint, by file. The files of one folder are one model."""

    files: dict[str, _File] = field(default_factory=dict)
    #: The files that hold a tensor, by folder and tensor name.
    _places: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _declared: dict[str, Declared] = field(default_factory=dict)

    def add(self, path: str, file: TensorFile) -> None:
        """Add the tensors of an open file."""
        tensors = {tensor.name: tensor for tensor in file.tensors}
        for name, tensor in tensors.items():
            describes = name.endswith("_shape") and tensor.size == 2
            describes |= name.endswith(comfyui.LAYER) and tensor.size <= _SMALL
            if describes and tensor.dtype is not None:
                fields = name, tensor.dtype, tensor.shape, tensor.kind, tensor.nbytes
                tensors[name] = LoadedTensor(*fields, array=tensor.read())
        self.files[path] = _File(file, tensors, dict(file.metadata), comfyui.layers(file.metadata))
        folder = os.path.dirname(path)
        for name in tensors:
            self._places.setdefault((folder, name), []).append(path)

    def path_of(self, name: str, near: str) -> str | None:
        """The file that holds a tensor: `near` itself, or another of its folder. FileError if several others do."""
        if name in self.files[near].tensors:
            return near
        paths = self._places.get((os.path.dirname(near), name), [])
        if len(paths) > 1:
            raise FileError(f"{near}: tensor {name!r} is in several files, {paths[0]} and {paths[1]}")
        return paths[0] if paths else None

    def detect(self) -> Iterator[DetectedTensor]:
        """All tensors that are stored as codes with scales."""
        seen: dict[tuple[str, str], tuple[str, str]] = {}
        for path, file in self.files.items():
            for key in file.metadata:
                base = key.removeprefix(ENTRY)
                if base != key and base in file.tensors and f"{base}.scales" not in file.tensors:
                    problem = f"{path}: tensor {base!r}: its scales {base + '.scales'!r} are missing"
                    yield DetectedTensor(base, base, "gpucast", {base: path}, file.tensors[base].nbytes, None, problem)
            for name in file.tensors:
                found = self._source(name, path)
                if found is None:
                    continue
                source, base, codes, where = found
                tensor = self._detected(source, base, source.parts(base, codes, name), where)
                if tensor is None:
                    continue
                if (where, codes) in seen:
                    other, its_path = seen[where, codes]
                    each = [f"{one!r} in {at}" for one, at in ((other, its_path), (name, path))]
                    raise FileError(f"{where}: tensor {codes!r} has two scales, {each[0]} and {each[1]}; expected one")
                seen[where, codes] = name, path
                yield tensor

    def beside(self, detected: Iterable[DetectedTensor]) -> Iterator[tuple[str, Tensor]]:
        """Paths and tensors that belong to no detected tensor."""
        used = {(path, name) for item in detected for name, path in item.paths.items()}
        for path, file in self.files.items():
            for name, tensor in file.tensors.items():
                if (path, name) not in used:
                    yield path, tensor

    def declared(self, path: str) -> Declared:
        """What is said of quantization next to a file."""
        folder = os.path.dirname(path)
        if folder not in self._declared:
            self._declared[folder] = Declared(folder)
        return self._declared[folder]

    # ---- one tensor ----

    def _source(self, scale: str, path: str) -> tuple[Source, str, str, str] | None:
        """Of a tensor named like scales: the source, the names of the weight and of its codes, and the file of these.
        None if it is not named so, or there are no codes."""
        for source in SOURCES:
            stem = scale.removesuffix(source.scales)
            base, codes = stem + source.weight, stem + source.codes
            is_described = source.style != "gpucast" or ENTRY + base in self.files[path].metadata
            if stem != scale and is_described and (where := self.path_of(codes, path)) is not None:
                return source, base, codes, where
        return None

    def _detected(self, source: Source, base: str, names: Mapping[str, str], path: str) -> DetectedTensor | None:
        data = self.files[path].tensors[names["data"]]
        paths = {part: self.path_of(name, path) for part, name in names.items()}
        tensors = {part: self.files[where].tensors[names[part]] for part, where in paths.items() if where is not None}
        is_own = source.style == "gpucast"
        if not (is_own or is_narrow(data)) or not source.fits(data, tensors["scales"]):
            return None
        where = {tensor.name: str(paths[part]) for part, tensor in tensors.items()}
        described = base.removesuffix("weight") + comfyui.LAYER
        if (near := self.path_of(described, path)) is not None:
            where[described] = near
        nbytes = sum(self.files[near].tensors[name].nbytes for name, near in where.items())
        stored, problem = None, ""
        try:
            if source.stored is not None:
                stored = source.stored(base, data, tensors["scales"])
            elif is_own:
                stored = stored_by_gpucast(base, tensors, self.files[path].metadata.get(ENTRY + base, ""))
            else:
                stored = stored_by_others(base, tensors, self._layer(base, path), self.declared(path).block)
        except (TypeError, ValueError) as error:
            problem = f"{path}: {error}"
        return DetectedTensor(data.name, base, source.style, where, nbytes, stored, problem)

    def _layer(self, base: str, path: str) -> dict[str, Any] | None:
        """ComfyUI's description of the layer of a weight."""
        name = base.removesuffix("weight") + comfyui.LAYER
        near = self.path_of(name, path)
        tensor = None if near is None else self.files[near].tensors[name]
        text = None if tensor is None else tensor.read().tobytes() if isinstance(tensor, LoadedTensor) else b""
        return comfyui.layer_of(base, text, self.files[path].layers)
