# SPDX-License-Identifier: Apache-2.0
"""Selects which tensors are cast, to which types, and which raw elements are read as another type."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpucast.core.dtypes import DType
from gpucast.files.tensor import FileError, StoredTensor, Tensor


@dataclass(frozen=True)
class SelectionRule:
    """Cast the tensors whose names match `pattern` to `dtype`; None keeps them as they are."""

    pattern: str
    dtype: DType | None

    def __str__(self) -> str:
        return f"{self.pattern}={'keep' if self.dtype is None else self.dtype.name}"


@dataclass(frozen=True)
class Choice:
    """Decides by name what becomes of a tensor. Patterns are shell wildcards. The first line that applies decides:

    - A pattern of `exclude` matches: the tensor is kept.
    - A rule matches: the first matching rule says what is done.
    - `include` has patterns: the tensor is cast to `to` if one matches, otherwise kept.
    - The tensor is floating, or the only tensor of the only file: it is cast to `to`.
    - Otherwise it is kept.
    """

    to: DType
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    rules: Sequence[SelectionRule] = ()

    def target(self, tensor: Tensor, alone: bool = False) -> DType | None:
        """The type that a tensor is cast to; None if it is kept."""
        if _any(self.exclude, tensor.name):
            return None
        for rule in self.rules:
            if fnmatch.fnmatchcase(tensor.name, rule.pattern):
                return rule.dtype
        if self.include:
            return self.to if _any(self.include, tensor.name) else None
        floating = tensor.dtype is not None and tensor.dtype.is_float
        return self.to if floating or alone else None

    def excludes(self, name: str) -> bool:
        """Whether a pattern of `exclude` matches."""
        return _any(self.exclude, name)

    def asked_for(self, tensor: Tensor, alone: bool = False) -> bool:
        """Whether the tensor was chosen by name, or as the only one, and not just because it is floating."""
        if self.target(tensor, alone) is None:
            return False
        named = (*self.include, *(rule.pattern for rule in self.rules))
        return alone or _any(named, tensor.name)

    def check(self, names: Sequence[str], cast: bool, path: str, why: str) -> None:
        """FileError if a pattern matches no tensor, or if nothing is cast; `why` gives reasons, if any."""
        if not names:
            raise FileError(f"{path}: holds no tensors")
        options = [("--include", pattern, pattern) for pattern in self.include]
        options += [("--exclude", pattern, pattern) for pattern in self.exclude]
        options += [("--rule", str(rule), rule.pattern) for rule in self.rules]
        for option, value, pattern in options:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
                raise FileError(f"{path}: no tensor matches {option} {value!r}; it holds {known}")
        if cast:
            return
        if why:
            raise FileError(f"{path}: none of its {len(names)} tensors can be cast: {why}")
        if self.include or self.exclude or self.rules:
            raise FileError(f"{path}: --include, --exclude and --rule leave none of its {len(names)} tensors to cast")
        raise FileError(f"{path}: none of its {len(names)} tensors is of a floating type; give --include")


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def read_as(tensors: Sequence[Tensor], dtype: DType, choice: Choice, path: str) -> list[Tensor]:
    """The tensors, with raw elements read as `dtype` (the option --from).

    Raw elements are void elements of the width of `dtype`, as NumPy saves types that it lacks, and unsigned integers of
    that width in tensors that were chosen by name or are the only one.
    """
    result: list[Tensor] = []
    for tensor in tensors:
        asked_for = choice.asked_for(tensor, len(tensors) == 1)
        result.append(
            tensor.of_type(dtype) if isinstance(tensor, StoredTensor) and _is_raw(tensor, dtype, asked_for) else tensor
        )
    if all(new is old for new, old in zip(result, tensors, strict=True)):
        width = dtype.code_numpy.itemsize
        raise FileError(
            f"{path}: --from {dtype.name} fits no tensor: none has raw elements or unsigned codes of {width} bytes"
        )
    return result


def _is_raw(tensor: StoredTensor, dtype: DType, asked_for: bool) -> bool:
    element = tensor.element
    if element is None or element.itemsize != dtype.code_numpy.itemsize:
        return False
    if tensor.dtype is None:
        return element.kind == "V" and element.names is None and element.subdtype is None
    return asked_for and tensor.dtype.family == "int" and not tensor.dtype.signed
