# SPDX-License-Identifier: Apache-2.0
"""What a conversion will do: for every file and tensor."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpucast.checkpoints.planning.identity import Identity
from gpucast.checkpoints.planning.tensors import Request, TensorPlan
from gpucast.checkpoints.scales.per_file import FileScales
from gpucast.core.version import __version__


@dataclass(frozen=True)
class FilePlan:
    """A file that is converted, or copied (`tensors` is None)."""

    path: str
    #: Its name in what is written, with slashes.
    name: str
    tensors: tuple[TensorPlan, ...] | None
    #: The file, and the others that it is read with: external data, and scales that other files hold.
    identity: tuple[Identity, ...]
    #: The file of external data that is written beside it, if any.
    external: str | None = None
    #: Which tensors are codes and scales.
    scales: FileScales = field(default_factory=FileScales)

    def changed(self, quick: bool = False) -> str | None:
        """The first file that is no longer what was planned with. `quick`: by sizes and times alone."""
        return next((known.path for known in self.identity if not known.is_unchanged(quick)), None)

    @property
    def bytes_in(self) -> int:
        return self.identity[0].size if self.tensors is None else sum(tensor.bytes_in for tensor in self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """All that is written, the file itself last: it refers to the other."""
        return (self.name,) if self.external is None else (self.external, self.name)


@dataclass(frozen=True)
class ConversionPlan:
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
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.dtype is not None]

    @property
    def left_alone(self) -> list[tuple[FilePlan, TensorPlan]]:
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.dtype is None]

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two plans alone whose unfinished work is the same."""
        tensors: list[Any] = [[[*_said(tensor)] for tensor in file.tensors or ()] for file in self.files]
        known = [[(one.size, one.time, one.ends) for one in file.identity] for file in self.files]
        where = [[file.name, file.tensors is None] for file in self.files]
        asked = self.request
        request = [dict(asked.attributes), asked.seed, asked.scale, asked.style, asked.detail]
        every = [__version__, where, known, tensors, request, self.indexes]
        text = json.dumps(every, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _said(tensor: TensorPlan) -> tuple[Any, ...]:
    return tensor.name, tensor.kind, None if tensor.dtype is None else tensor.dtype.name, tensor.shape, tensor.names
