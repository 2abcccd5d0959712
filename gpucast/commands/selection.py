# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a file are cast, and as what they are read."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from gpucast.dtypes import DType
from gpucast.files.tensor import FileError, StoredTensor, Tensor


@dataclass(frozen=True)
class Selection:
    """`patterns` (shell wildcards) or `everything` choose; with neither: the floating ones, or the only one."""

    patterns: Sequence[str] = ()
    everything: bool = False

    def names(self, tensors: Sequence[Tensor], path: str) -> set[str]:
        """The names of the tensors to cast. FileError when there are none, or when a pattern finds none."""
        if not tensors:
            raise FileError(f"{path}: holds no tensors")
        if self.patterns:
            return self._named(tensors, path)
        if self.everything or len(tensors) == 1:
            return {tensor.name for tensor in tensors}
        floating = {tensor.name for tensor in tensors if tensor.row is not None and tensor.row.is_float}
        if not floating:
            raise FileError(f"{path}: none of its {len(tensors)} tensors is of a floating type; give --all or --only")
        return floating

    def asked_for(self, tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensor was chosen for more than its type."""
        return self.everything or len(tensors) == 1 or any(fnmatch.fnmatchcase(tensor.name, p) for p in self.patterns)

    def _named(self, tensors: Sequence[Tensor], path: str) -> set[str]:
        found: set[str] = set()
        for pattern in self.patterns:
            names = {tensor.name for tensor in tensors if fnmatch.fnmatchcase(tensor.name, pattern)}
            if not names:
                known = ", ".join(repr(tensor.name) for tensor in tensors[:10]) + (", ..." if len(tensors) > 10 else "")
                raise FileError(f"{path}: no tensor matches --only {pattern!r}; it holds {known}")
            found |= names
        return found


def read_as(tensors: Sequence[Tensor], row: DType, selection: Selection, path: str) -> list[Tensor]:
    """The tensors with those that --from speaks of read as `row`.

    These are: elements of `row`'s width that NumPy saved without their type (void), and unsigned codes of that width
    in tensors that were asked for by name, by --all, or by being the only one.
    """
    found: list[Tensor] = []
    for tensor in tensors:
        asked_for = selection.asked_for(tensor, tensors)
        found.append(
            tensor.of_type(row) if isinstance(tensor, StoredTensor) and _raw(tensor, row, asked_for) else tensor
        )
    if all(new is old for new, old in zip(found, tensors, strict=True)):
        width = row.code_numpy.itemsize
        raise FileError(
            f"{path}: --from {row.name} fits no tensor: none has raw elements or unsigned codes of {width} bytes"
        )
    return found


def _raw(tensor: StoredTensor, row: DType, asked_for: bool) -> bool:
    element = tensor.element
    if element is None or element.itemsize != row.code_numpy.itemsize:
        return False
    if tensor.row is None:
        return element.kind == "V" and element.names is None and element.subdtype is None
    return asked_for and tensor.row.family == "int" and not tensor.row.signed
