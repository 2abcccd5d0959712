# SPDX-License-Identifier: Apache-2.0
"""The plan of a conversion: the work for every file and tensor."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from gpucast.convert.planning.tensor_plan import TensorPlan
from gpucast.convert.scales.per_file import FileScales
from gpucast.convert.scales.request import Request
from gpucast.convert.scales.scaling import FusedGroup
from gpucast.core.version import __version__

#: Bytes at each end of a file that are hashed.
_END = 1 << 16


@dataclass(frozen=True)
class Identity:
    """Path, size, time and a hash of a file: the same on every machine that sees it, and in the next run."""

    path: str
    size: int
    #: In nanoseconds.
    time: int
    #: SHA-256 of the first and last bytes, which hold the headers and the directory of a .npz with its checksums.
    ends: str

    @staticmethod
    def of(path: str) -> Identity:
        status = os.stat(path)
        return Identity(path, status.st_size, status.st_mtime_ns, _ends(path))

    def is_unchanged(self, quick: bool = False) -> bool:
        """Whether the file is still the same. `quick` compares only size and time."""
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.time):
            return False
        return quick or _ends(self.path) == self.ends


class Stamp(NamedTuple):
    """Differs after any change of a file, or if another file replaces it. Valid on one machine only."""

    device: int
    inode: int
    #: When content, name or mode last changed: unlike the time of the content it cannot be set. In nanoseconds.
    changed: int
    size: int
    time: int

    @staticmethod
    def of(path: str) -> Stamp:
        status = os.stat(path)
        return Stamp(status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_mtime_ns)


def _ends(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(_END))
        file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _END))
        digest.update(file.read(_END))
    return digest.hexdigest()


@dataclass(frozen=True)
class FilePlan:
    """The plan of one file: it is converted, or copied if `tensors` is None."""

    path: str
    #: Its name relative to the target, with slashes.
    name: str
    tensors: tuple[TensorPlan, ...] | None
    #: The file itself, then the other files it is read with: external data, and files that hold its scales.
    identity: tuple[Identity, ...]
    #: The name of the file of external data that is written with it, if any.
    external: str | None = None
    #: Which tensors are codes and scales.
    scales: FileScales = field(default_factory=FileScales)
    #: The weights that share a global scale, by each of their names in this file.
    groups: Mapping[str, FusedGroup] = field(default_factory=dict)
    #: The metadata of the written file.
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Where it is put together from tensors of several files, or some of one: the plans of these tensors, by file.
    parts: tuple[FilePlan, ...] = ()

    def changed(self, quick: bool = False) -> str | None:
        """The first input file that has changed since planning. `quick` compares only sizes and times."""
        return next((known.path for known in self.identity if not known.is_unchanged(quick)), None)

    @property
    def sources(self) -> tuple[FilePlan, ...]:
        """The plans of its tensors by the file that they are read from."""
        return self.parts or (self,)

    @cached_property
    def origins(self) -> dict[str, str]:
        """The path of the file that each tensor is read from."""
        return {tensor.name: part.path for part in self.sources for tensor in part.tensors or ()}

    @property
    def bytes_in(self) -> int:
        return self.identity[0].size if self.tensors is None else sum(tensor.bytes_in for tensor in self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files that are written. The file itself is last, since it refers to its external data."""
        return (self.name,) if self.external is None else (self.external, self.name)


@dataclass(frozen=True)
class ConversionPlan:
    """Everything that a conversion does, file by file."""

    source: str
    target: str
    request: Request
    files: tuple[FilePlan, ...]
    #: Whether one file becomes one file; otherwise a folder is written.
    single: bool
    #: Names and texts of the indexes and config.json files that are written.
    indexes: tuple[tuple[str, str], ...] = ()
    #: Metadata keys of the source that the target's format cannot hold, or of which merged files say different things.
    dropped: tuple[str, ...] = ()
    #: The names of files of the source that a merged file does not have.
    left_out: tuple[str, ...] = ()
    #: Whether a file that is at the target may be replaced.
    overwrite: bool = True

    @property
    def converted(self) -> list[tuple[FilePlan, TensorPlan]]:
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.dtype is not None]

    @property
    def left_alone(self) -> list[tuple[FilePlan, TensorPlan]]:
        return [(file, tensor) for file in self.files for tensor in file.tensors or () if tensor.dtype is None]

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two plans exactly when one can resume the unfinished work of the other."""
        tensors: list[Any] = [
            (one.name, one.kind, one.dtype, one.shape, one.names) for file in self.files for one in file.tensors or ()
        ]
        identities = [[(one.size, one.time, one.ends) for one in file.identity] for file in self.files]
        names = [[file.name, file.tensors is None] for file in self.files]
        request = self.request
        options = [dict(request.attributes), request.seed, request.scale, request.style, request.detail]
        options += [request.scale_rule, request.repack]
        parts = [__version__, names, identities, tensors, options, self.indexes]
        text = json.dumps(parts, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
