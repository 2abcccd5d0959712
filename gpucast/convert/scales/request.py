# SPDX-License-Identifier: Apache-2.0
"""The user's request: which tensors are cast, to which types, and how scales are found and stored."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucast import files
from gpucast.convert.scales import companions, scale_styles
from gpucast.convert.streaming.pieces import tensor_seed
from gpucast.core.dtypes import DType
from gpucast.core.fuse import Random, resolve_random
from gpucast.files import FileError, Tensor
from gpucast.quantization.formats import ScaleRule

Detail = Literal["errors", "all"]


@dataclass(frozen=True)
class SelectionRule:
    """Cast the tensors whose names match `pattern` to `dtype`; None keeps them as they are."""

    pattern: str
    dtype: DType | None

    def __str__(self) -> str:
        return f"{self.pattern}={'keep' if self.dtype is None else self.dtype.name}"


@dataclass(frozen=True)
class Choice:
    """Decides by name whether a tensor is cast. Patterns are shell wildcards. The first line that applies decides:

    - A pattern of `exclude` matches: the tensor is kept.
    - A rule matches: the first matching rule gives the type, or keeps the tensor.
    - `include` has patterns: the tensor is cast to `to` if one matches, otherwise kept.
    - The tensor is floating, or the only tensor of the only file: it is cast to `to`.
    - Otherwise it is kept.
    """

    to: DType
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    rules: Sequence[SelectionRule] = ()
    #: What becomes of tensors beside codes: kept as they are, left out, or taken for plain numbers.
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    as_weights: Sequence[str] = ()

    def target(self, tensor: Tensor, alone: bool = False) -> DType | None:
        """The type that a tensor is cast to; None if it is kept."""
        if matches((*self.exclude, *self.keep), tensor.name):
            return None
        for rule in self.rules:
            if fnmatch.fnmatchcase(tensor.name, rule.pattern):
                return rule.dtype
        if self.include:
            return self.to if matches(self.include, tensor.name) else None
        return self.to if alone or holds_numbers(tensor) else None

    def asked_for(self, tensor: Tensor, alone: bool = False) -> bool:
        """Whether the tensor was chosen by name, or as the only one, and not just because it is floating."""
        if self.target(tensor, alone) is None:
            return False
        named = (*self.include, *(rule.pattern for rule in self.rules))
        return alone or matches(named, tensor.name)

    @property
    def _naming(self) -> list[tuple[str, str]]:
        """The options that choose tensors by name to be cast, each with its pattern."""
        included = [(f"--include {pattern!r}", pattern) for pattern in self.include]
        return included + [(f"--rule {str(rule)!r}", rule.pattern) for rule in self.rules]

    def naming(self, name: str, others: Iterable[str]) -> str | None:
        """The option, as it was given, that names a tensor and none of the others; None if there is none."""
        for option, pattern in self._naming:
            if fnmatch.fnmatchcase(name, pattern) and not any(fnmatch.fnmatchcase(one, pattern) for one in others):
                return option
        return None

    def check(self, names: Sequence[str], cast: bool, path: str, why: str) -> None:
        """FileError if a pattern matches no tensor, or if nothing is cast; `why` gives reasons, if any."""
        if not names and path.lower().endswith(files.MODEL):
            raise FileError(f"{path}: the model has no initializers, and no Constant that is a weight: nothing to cast")
        if not names:
            raise FileError(f"{path}: holds no tensors")
        options = self._naming
        for option in ("exclude", "keep", "drop", "as_weights"):
            options += [(f"--{option.replace('_', '-')} {pattern!r}", pattern) for pattern in getattr(self, option)]
        for option, pattern in options:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
                within = any(pattern in name for name in names)
                hint = f"; a pattern is for whole names: did you mean '*{pattern}*'?" if within else ""
                raise FileError(f"{path}: no tensor matches {option}; it holds {known}{hint}")
        if cast:
            return
        if why:
            raise FileError(f"{path}: none of its {len(names)} tensors can be cast: {why}")
        if self.include or self.exclude or self.rules:
            raise FileError(f"{path}: --include, --exclude and --rule leave none of its {len(names)} tensors to cast")
        raise FileError(f"{path}: none of its {len(names)} tensors is of a floating type; give --include")


def holds_numbers(tensor: Tensor) -> bool:
    """Whether a tensor is of a floating type, or a plain cast of gpucast. Other integers may be indices, and codes of
    other programs have scales."""
    return tensor.dtype is not None and (tensor.dtype.is_float or companions.is_plain_cast(tensor))


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns, shell wildcards, is for a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Request:
    """The user's request. `attributes` are keywords of `gpucast.cast`; raw elements are read as `source_dtype`."""

    choice: Choice
    attributes: Mapping[str, Any]
    scale: str | None = None
    source_dtype: DType | None = None
    #: What is computed for each tensor: counts of losses and errors, or everything that a report shows.
    detail: Detail = "errors"
    #: How scales are stored: one of `gpucast.convert.scales.scale_styles.STYLES`; None where nobody said.
    asked_style: str | None = None
    #: For stochastic rounding. Each tensor gets its own seed, derived from this one.
    seed: int | None = None
    #: How the scales are found; None: as the style's own tool does.
    scale_rule: ScaleRule | None = None
    #: Checkpoints are written in files of at most so many bytes of tensors; None: in those that they have.
    shard_size: int | None = None
    #: Only tensors that are codes with scales are converted, and every number of theirs is kept.
    repack: bool = False

    def __post_init__(self) -> None:
        resolve_random(self.attributes.get("rounding"), self.seed, None, "convert")

    @property
    def style(self) -> str:
        """How scales are stored."""
        return self.asked_style or scale_styles.DEFAULT

    def random(self, name: str) -> Random | None:
        """The random bits for the tensor `name`; None without stochastic rounding."""
        return None if self.seed is None else Random(tensor_seed(self.seed, name))
