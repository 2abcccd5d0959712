# SPDX-License-Identifier: Apache-2.0
"""Detects the tensors of a checkpoint that are codes with scales, by the names that the styles give them.

The names are those of `gpucast.convert.scales.scale_styles`, and of NVIDIA's ModelOpt for NVFP4: X.weight UINT8
(two codes to a byte), X.weight_scale FLOAT8E4M3FN, X.weight_scale_2 FLOAT, which multiplies (vLLM,
quantization/modelopt.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpucast.convert.scales import comfyui, config_json
from gpucast.convert.scales.declared import Declared
from gpucast.convert.scales.dequantized import DetectedTensor
from gpucast.convert.scales.forms import FAMILIES, Candidate, is_narrow, stored_by_gpucast, stored_by_others
from gpucast.convert.scales.scale_styles import ENTRY
from gpucast.files import FileError, Tensor, TensorFile
from gpucast.files.tensor import LoadedTensor

_FAMILIES = {family.style: family for family in FAMILIES}
#: Tensors up to this many bytes that describe another one are read at once: they are needed after the file is closed.
_SMALL = 1 << 12


@dataclass
class _File:
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
    #: The block size in the config.json of a folder.
    _blocks: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def add(self, path: str, file: TensorFile) -> None:
        """Add the tensors of an open file."""
        tensors = {tensor.name: tensor for tensor in file.tensors}
        for name, tensor in tensors.items():
            describes = name.endswith("_shape") and tensor.size == 2
            describes |= name.endswith(comfyui.LAYER) and tensor.size <= _SMALL
            if describes and tensor.dtype is not None:
                fields = name, tensor.dtype, tensor.shape, tensor.kind, tensor.nbytes
                tensors[name] = LoadedTensor(*fields, array=tensor.read())
        self.files[path] = _File(tensors, dict(file.metadata), comfyui.layers(file.metadata))
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
        seen: dict[tuple[str, str], str] = {}
        for path, file in self.files.items():
            for key in file.metadata:
                base = key.removeprefix(ENTRY)
                if base != key and base in file.tensors and f"{base}.scales" not in file.tensors:
                    problem = f"{path}: tensor {base!r}: its scales {base + '.scales'!r} are missing"
                    yield DetectedTensor(base, base, "gpucast", {base: path}, file.tensors[base].nbytes, None, problem)
            for name in file.tensors:
                candidate = self._candidate(name, path)
                if candidate is None:
                    continue
                where = self.path_of(candidate.data, path)
                if where is None:
                    continue
                tensor = self._detected(candidate, where)
                if tensor is None:
                    continue
                if (where, candidate.data) in seen:
                    other = seen[where, candidate.data]
                    raise FileError(
                        f"{where}: tensor {candidate.data!r} has two kinds of scales, {other!r} and {name!r}"
                    )
                seen[where, candidate.data] = name
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

    def _candidate(self, scale: str, path: str) -> Candidate | None:
        """The tensor that a tensor named `scale` would hold the scales of; None if it is not named like scales."""
        if scale.endswith(".scales") and ENTRY + scale.removesuffix(".scales") in self.files[path].metadata:
            base = scale.removesuffix(".scales")
            more = {"zero_points": f"{base}.zero_points", "global_scale": f"{base}.global_scale"}
            return Candidate("gpucast", base, scale, base, more)
        if scale.endswith("_scale_inv"):
            base = scale.removesuffix("_scale_inv")
            return Candidate("deepseek", base, scale, base, {})
        if scale.endswith("scale_weight"):
            base = scale.removesuffix("scale_weight") + "weight"
            return Candidate("comfyui", base, scale, base, {})
        for family in _FAMILIES.values():
            base, data = family.names(scale)
            if base and self.path_of(data, path) is not None:
                return Candidate(family.style, base, scale, data, {})
        if not scale.endswith("_scale"):
            return None
        base = scale.removesuffix("_scale")
        more = {
            "zero_points": f"{base}_zero_point",
            "global_scale": f"{base}_global_scale",
            "second_scale": f"{base}_scale_2",
            "shape": f"{base}_shape",
            "g_idx": f"{base}_g_idx",
            "pre_quant_scale": f"{base.removesuffix('weight')}pre_quant_scale",
        }
        data = f"{base}_packed" if self.path_of(f"{base}_packed", path) is not None else base
        return Candidate("compressed-tensors", base, scale, data, more)

    def _detected(self, candidate: Candidate, path: str) -> DetectedTensor | None:
        data = self.files[path].tensors[candidate.data]
        names = {"data": candidate.data, "scales": candidate.scale, **candidate.more}
        paths = {part: self.path_of(name, path) for part, name in names.items()}
        tensors = {part: self.files[where].tensors[names[part]] for part, where in paths.items() if where is not None}
        if candidate.style != "gpucast" and not is_narrow(data):
            return None
        family = _FAMILIES.get(candidate.style)
        if family is not None and not family.fits(data, tensors["scales"]):
            return None
        where = {tensor.name: str(paths[part]) for part, tensor in tensors.items()}
        described = candidate.base.removesuffix("weight") + comfyui.LAYER
        if (near := self.path_of(described, path)) is not None:
            where[described] = near
        nbytes = sum(self.files[near].tensors[name].nbytes for name, near in where.items())
        try:
            if family is not None and family.stored is not None:
                stored = family.stored(candidate.base, data, tensors["scales"])
            elif candidate.style == "gpucast":
                entry = self.files[path].metadata.get(ENTRY + candidate.base, "")
                stored = stored_by_gpucast(candidate, tensors, entry)
            else:
                stored = stored_by_others(candidate, tensors, self._layer(candidate.base, path), self._block(path))
        except (TypeError, ValueError) as error:
            return DetectedTensor(
                candidate.data, candidate.base, candidate.style, where, nbytes, None, f"{path}: {error}"
            )
        return DetectedTensor(candidate.data, candidate.base, candidate.style, where, nbytes, stored)

    def _block(self, path: str) -> tuple[int, int] | None:
        """The block size in the config.json next to a file."""
        folder = os.path.dirname(path)
        if folder not in self._blocks:
            self._blocks[folder] = config_json.block_size(folder)
        return self._blocks[folder]

    def _layer(self, base: str, path: str) -> dict[str, Any] | None:
        """ComfyUI's description of the layer of a weight."""
        name = base.removesuffix("weight") + comfyui.LAYER
        near = self.path_of(name, path)
        tensor = None if near is None else self.files[near].tensors[name]
        text = None if tensor is None else tensor.read().tobytes() if isinstance(tensor, LoadedTensor) else b""
        return comfyui.layer_of(base, text, self.files[path].layers)
