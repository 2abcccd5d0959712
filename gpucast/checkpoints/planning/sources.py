# SPDX-License-Identifier: Apache-2.0
"""What is to be converted: one file, the files of an index, or a folder of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from gpucast.files import MODEL, index
from gpucast.files.index import Index
from gpucast.files.inside import inside, within
from gpucast.files.tensor import FileError

#: The files of a folder whose tensors are converted; all others are copied. A .pb need not be a tensor there.
SUFFIXES = (".safetensors", ".npz", ".npy", MODEL)


@dataclass(frozen=True)
class SourceFile:
    """A file and the name, with slashes, that it has in the source and in what is written."""

    path: str
    name: str
    #: Its tensors are converted; else it is copied.
    tensors: bool = True


@dataclass(frozen=True)
class Source:
    path: str
    items: tuple[SourceFile, ...]
    #: One file becomes one file; else a folder is written.
    single: bool
    #: The indexes of checkpoints of several files, and the names that they have.
    indexes: tuple[tuple[str, Index], ...] = ()


def find(path: str, target: str) -> Source:
    """The files of `path` that become `target`. FileError, OSError."""
    if os.path.isdir(path):
        return _folder(path, target)
    if path.endswith(index.SUFFIX):
        found = index.read(path)
        _check_shards(found)
        folder = os.path.dirname(path) or "."
        names = [os.path.normpath(name).replace(os.sep, "/") for name in found.files]
        items = tuple(_item(folder, name, path, "weight_map names") for name in names)
        _check_names([item.name for item in items], path)
        return Source(path, items, single=False, indexes=((os.path.basename(path), found),))
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FileError(f"{path}: is no regular file")
    return Source(path, (SourceFile(path, os.path.basename(target)),), single=True)


def _folder(path: str, target: str) -> Source:
    if within(path, target):
        raise FileError(f"{target}: lies in the folder {path}, which is to be converted; choose another place")
    items, indexes = [], []
    for name in _names(path):
        item = _item(path, name, path, "file")
        if name.endswith(index.SUFFIX):
            found = index.read(item.path)
            if all(shard.endswith(".safetensors") for shard in found.files):
                _check_shards(found)
                indexes.append((name, found))
                continue
        items.append(item)
    if not any(item.tensors for item in items):
        raise FileError(f"{path}: has no file of {', '.join(SUFFIXES)}")
    _check_names([item.name for item in items] + [name for name, _ in indexes], path)
    return Source(path, tuple(items), single=False, indexes=tuple(indexes))


def _names(folder: str) -> Iterator[str]:
    """The files of a folder and of the folders within it, hidden ones left out, in a fixed order."""

    def failed(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if os.path.islink(os.path.join(parent, name)):
                raise FileError(f"{os.path.join(parent, name)}: is a link to a folder, which is not followed")
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(parent, name), folder).replace(os.sep, "/")


def _item(folder: str, name: str, path: str, what: str) -> SourceFile:
    suffix = os.path.splitext(name)[1].lower()
    return SourceFile(inside(folder, name, path, what), name, suffix in SUFFIXES)


def _check_shards(found: Index) -> None:
    if not found.weight_map:
        raise FileError(f"{found.path}: the weight_map is empty")
    for name in found.files:
        inside(os.path.dirname(found.path) or ".", name, found.path, "weight_map names")
        if not name.endswith(".safetensors"):
            raise FileError(f"{found.path}: weight_map names {name!r}; expected .safetensors files")


def _check_names(names: list[str], path: str) -> None:
    """Two files must not become one, not even where upper and lower case are the same."""
    seen: dict[str, str] = {}
    for name in names:
        plain = os.path.normpath(name).casefold()
        if plain in seen:
            raise FileError(f"{path}: {seen[plain]!r} and {name!r} would be one file")
        seen[plain] = name
