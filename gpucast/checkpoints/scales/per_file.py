# SPDX-License-Identifier: Apache-2.0
"""Which tensors of each file are codes and scales that are read as numbers, and which of them are kept as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpucast.checkpoints.scales import comfyui
from gpucast.checkpoints.scales.dequantized import Dequantized, DetectedTensor
from gpucast.checkpoints.scales.detect import Catalogue
from gpucast.checkpoints.scales.styles import ENTRY
from gpucast.core.dtypes import dtype
from gpucast.files import FileError, Tensor
from gpucast.files.tensor import LoadedTensor

_FLOAT = dtype("FLOAT")
#: The metadata entry of `gpucast.Quantized.save`.
_SAVED = "gpucast.quantized"


@dataclass(frozen=True)
class FileScales:
    """What of a file's tensors belongs together."""

    #: Tensors to be read as numbers: the data are in this file.
    found: tuple[DetectedTensor, ...] = ()
    #: Names in this file that are kept as they are, and those that go into tensors that are found.
    kept: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    #: Keys of the metadata that no longer hold.
    metadata: frozenset[str] = frozenset()


@dataclass
class _FileScalesBuilder:
    """The fields of a `FileScales`, and the styles of what is cast (True) and of what is kept."""

    found: list[DetectedTensor] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    metadata: set[str] = field(default_factory=set)
    styles: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})


def scales_by_file(
    catalogue: Catalogue,
    is_cast: Callable[[Tensor], bool],
    is_asked_for: Callable[[Tensor], bool],
    is_excluded: Callable[[str], bool],
) -> dict[str, FileScales]:
    """What belongs together in each file, for who casts the tensors of which `is_cast` is true.

    A name that is excluded keeps all that belongs to it.
    FileError where such a tensor, or scales without one, cannot be read as numbers.
    """
    every = list(catalogue.found())
    of_file = {path: _FileScalesBuilder() for path in catalogue.files}
    for found in every:
        path = found.paths[found.name]
        numbers = _numbers(found, path)
        cast = is_cast(numbers) and not any(map(is_excluded, found.paths))
        if cast and found.stored is None:
            raise FileError(f"{found.problem}; leave {numbers.name!r} as it is with --exclude")
        for name, where in found.paths.items():
            (of_file[where].dropped if cast else of_file[where].kept).add(name)
        if cast:
            of_file[path].found.append(found)
            of_file[path].metadata |= {ENTRY + found.base, comfyui.METADATA}
        of_file[path].styles[cast].add(found.style)
    _check_known(catalogue, every, is_cast, is_asked_for)
    for path, file in catalogue.files.items():
        marks = set(filter(comfyui.is_marker, file.tensors))
        if marks and "comfyui" in of_file[path].styles[True]:
            if "comfyui" in of_file[path].styles[False]:
                raise FileError(f"{path}: has the mark {min(marks)!r} for all scales; cast all its weights, or none")
            of_file[path].dropped |= marks
        else:
            of_file[path].kept |= marks
        if comfyui.METADATA in file.metadata and all(of_file[path].styles.values()):
            raise FileError(f"{path}: its metadata tell of all scales; cast all its weights, or none")
        if _SAVED in file.metadata and any(map(is_cast, file.tensors.values())):
            raise FileError(f"{path}: is an array that gpucast.Quantized.save wrote; read it with Quantized.load")
    return {
        path: FileScales(tuple(s.found), frozenset(s.kept), frozenset(s.dropped), frozenset(s.metadata))
        for path, s in of_file.items()
    }


def _check_known(
    catalogue: Catalogue,
    every: Sequence[DetectedTensor],
    is_cast: Callable[[Tensor], bool],
    is_asked_for: Callable[[Tensor], bool],
) -> None:
    """FileError for what would be cast and may be scales, or codes, that belong to nothing that was found."""
    for path, tensor in catalogue.leftover(every):
        if tensor.dtype is not None and tensor.dtype.is_float and is_cast(tensor) and not is_asked_for(tensor):
            raise FileError(
                f"{path}: tensor {tensor.name!r} is named like a scale, and no codes belong to it that are known "
                "here; cast it by name with --include or --rule, or keep it with --exclude"
            )
    for path, tensor, scale in catalogue.unscaled(every):
        # Integers are kept; without their scales they are worth nothing.
        lost = tensor if tensor.dtype is not None and tensor.dtype.is_float else scale
        if is_cast(lost) and not is_asked_for(lost):
            raise FileError(
                f"{path}: tensor {tensor.name!r} is {tensor.kind}, and {scale.name!r} beside it may be its scales, "
                f"in a form that is not known here; cast {lost.name!r} by name with --include or --rule, or keep "
                "it with --exclude"
            )


def _numbers(found: DetectedTensor, path: str) -> Tensor:
    """The tensor of numbers, or where it cannot be read, one of its name."""
    if found.stored is not None:
        return Dequantized.of(found, {}, path)
    return LoadedTensor(found.base, _FLOAT, (1, 1), found.kind, 0, np.zeros((1, 1), np.float32))
