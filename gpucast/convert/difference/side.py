# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: the tensors of a checkpoint by the names of the weights that they stand for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucast.convert.planning import sources
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.convert.scales.detect import Catalogue
from gpucast.files import FileError, Tensor, TensorFile


@dataclass
class Side:
    """Tensors by name, codes with scales as `Dequantized`; its files are open."""

    path: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    #: Why some tensors cannot be read as numbers, by name.
    problems: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def opened(path: str) -> Iterator[Side]:
    """The tensors of a file, an index or a folder. FileError if it cannot be read as tensors."""
    with contextlib.ExitStack() as stack:
        catalogue, side = Catalogue(), Side(path)
        # A name that is no folder, so that any folder can be read.
        for item in sources.find(path, f"{path.rstrip('/')}.none").items:
            if item.tensors:
                catalogue.add(item.path, stack.enter_context(TensorFile(item.path)))
        used: set[tuple[str, str]] = set()
        for detected in catalogue.detect():
            used.update((where, name) for name, where in detected.paths.items())
            if detected.stored is None:
                side.problems[detected.base] = detected.problem
                continue
            where = detected.paths[detected.name]
            _add(side, Dequantized.of(detected, catalogue.files[where].tensors, where), detected.base)
        for where, file in catalogue.files.items():
            for name, tensor in file.tensors.items():
                if (where, name) not in used:
                    _add(side, tensor, name)
        yield side


def _add(side: Side, tensor: Tensor, name: str) -> None:
    if name in side.tensors:
        raise FileError(f"{side.path}: tensor {name!r} is in several files")
    if tensor.dtype is None or tensor.dtype.family == "string":
        side.problems[name] = f"tensor {name!r} of {tensor.kind} has no numbers to compare"
        return
    side.tensors[name] = tensor
