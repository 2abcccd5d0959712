# SPDX-License-Identifier: Apache-2.0
"""Decides for each file which codes and scales are read as numbers, and which are kept as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpucast.convert.scales import comfyui
from gpucast.convert.scales.dequantized import Dequantized, DetectedTensor
from gpucast.convert.scales.detect import Catalogue
from gpucast.convert.scales.scale_styles import ENTRY, RECIPE
from gpucast.core.dtypes import dtype
from gpucast.files import FileError, Tensor
from gpucast.files.tensor import LoadedTensor

_FLOAT = dtype("FLOAT")


@dataclass
class FileScales:
    """The tensors of one file that are codes or scales."""

    #: Tensors that are read as numbers; their codes are in this file.
    detected: list[DetectedTensor] = field(default_factory=list)
    #: Names in this file that are kept as they are, and names that become part of a detected tensor.
    kept: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    #: Keys of the metadata that are no longer true.
    metadata: set[str] = field(default_factory=set)
    #: The styles of tensors that are cast (True) and of those that are kept.
    styles: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})


def scales_by_file(
    catalogue: Catalogue,
    is_cast: Callable[[Tensor], bool],
    is_asked_for: Callable[[Tensor], bool],
    is_excluded: Callable[[str], bool],
) -> dict[str, FileScales]:
    """The codes and scales of each file, given which tensors of numbers are cast (`is_cast`).

    If one part of a quantized tensor is excluded, all its parts are kept. FileError if a tensor that would be cast
    cannot be read as numbers, and for scales that would be cast but belong to no known codes.
    """
    every = list(catalogue.detect())
    of_file = {path: FileScales() for path in catalogue.files}
    for tensor in every:
        path = tensor.paths[tensor.name]
        numbers = _numbers(tensor, path)
        cast = is_cast(numbers) and not any(map(is_excluded, tensor.paths))
        if cast and tensor.stored is None:
            raise FileError(f"{tensor.problem}; leave {numbers.name!r} as it is with --exclude")
        for name, where in tensor.paths.items():
            (of_file[where].dropped if cast else of_file[where].kept).add(name)
        if cast:
            of_file[path].detected.append(tensor)
            of_file[path].metadata |= {ENTRY + tensor.base, RECIPE, comfyui.METADATA}
        of_file[path].styles[cast].add(tensor.style)
    for path, half, family in catalogue.unmatched_halves(every):
        if not is_excluded(half.name):
            raise FileError(
                f"{path}: tensor {half.name!r} is half of a weight of {family}, and its other half is missing; leave "
                "it as it is with --exclude"
            )
    _check_known(catalogue, every, is_cast, is_asked_for)
    for path, file in catalogue.files.items():
        markers = set(filter(comfyui.is_marker, file.tensors))
        if markers and "comfyui" in of_file[path].styles[True]:
            if "comfyui" in of_file[path].styles[False]:
                raise FileError(f"{path}: has the mark {min(markers)!r} for all scales; cast all its weights, or none")
            of_file[path].dropped |= markers
        else:
            of_file[path].kept |= markers
        if comfyui.METADATA in file.metadata and all(of_file[path].styles.values()):
            raise FileError(f"{path}: its metadata tell of all scales; cast all its weights, or none")
    return of_file


def _check_known(
    catalogue: Catalogue,
    every: Sequence[DetectedTensor],
    is_cast: Callable[[Tensor], bool],
    is_asked_for: Callable[[Tensor], bool],
) -> None:
    """FileError for tensors that would be cast but look like scales or codes of no detected tensor."""
    for path, tensor in catalogue.unmatched_scales(every):
        if tensor.dtype is not None and tensor.dtype.is_float and is_cast(tensor) and not is_asked_for(tensor):
            raise FileError(
                f"{path}: tensor {tensor.name!r} is named like a scale, and no codes belong to it that are known "
                "here; keep it and its codes as they are with --exclude, or, if it is none, cast it by name with --rule"
            )
    for path, tensor, scale in catalogue.unmatched_codes(every):
        # Integer codes are kept anyway, but they have no meaning without their scales.
        lost = tensor if tensor.dtype is not None and tensor.dtype.is_float else scale
        if is_cast(lost) and not is_asked_for(lost):
            raise FileError(
                f"{path}: tensor {tensor.name!r} is {tensor.kind}, and {scale.name!r} beside it may be its scales, "
                f"in a form that is not known here: cast alone, either loses its meaning; keep both as they are with "
                f"--exclude {tensor.name!r} --exclude {scale.name!r}"
            )


def _numbers(tensor: DetectedTensor, path: str) -> Tensor:
    """The tensor of numbers; a placeholder of the same name if it cannot be read."""
    if tensor.stored is not None:
        return Dequantized.of(tensor, {}, path)
    return LoadedTensor(tensor.base, _FLOAT, (1, 1), tensor.kind, 0, np.zeros((1, 1), np.float32))


def read_as_numbers(tensors: Sequence[Tensor], scales: FileScales, path: str) -> list[Tensor]:
    """The tensors, with codes and their scales replaced by one tensor of numbers."""
    if not scales.dropped:
        return list(tensors)
    named = {tensor.name: tensor for tensor in tensors}
    numbers: dict[str, Tensor] = {one.name: Dequantized.of(one, named, path) for one in scales.detected}
    return [
        numbers.get(tensor.name, tensor)
        for tensor in tensors
        if tensor.name in numbers or tensor.name not in scales.dropped
    ]
