# SPDX-License-Identifier: Apache-2.0
"""Lists the files to convert: one file, the files of an index, or those of a folder.

The index of a checkpoint in several .safetensors files is
{"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor: file}}
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucast.convert.scales import config_json
from gpucast.convert.scales.detect import Catalogue
from gpucast.files import MODEL, TensorFile, file_limits, strangers
from gpucast.files.atomic import inside, open_regular, within
from gpucast.files.onnx_model import Model
from gpucast.files.tensor import FileError, checked_name

SUFFIX = ".index.json"
#: Files of a folder whose tensors are converted; all others are copied, .pb too, as it need not hold a tensor.
SUFFIXES = (".safetensors", ".npz", ".npy", MODEL)
#: The format of files that are split and merged.
_MERGED = ".safetensors"
#: Files of PyTorch, which may run a program when they are read.
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_GGUF = ".gguf"
_NO_GGUF = f"holds {strangers.GGUF}"
_ADVICE = (
    "holds weights as PyTorch pickles them, which are not read here; save them as .safetensors first "
    "(safetensors.torch.save_file, or save_pretrained of transformers)"
)


@dataclass(frozen=True)
class Index:
    path: str
    #: The complete document; entries unknown to gpucast are kept.
    document: Mapping[str, Any] = field(default_factory=dict)
    weight_map: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """The names of the files, each once, in order of first appearance."""
        return list(dict.fromkeys(self.weight_map.values()))

    def text(self, weight_map: Mapping[str, str], total_size: int) -> str:
        """The document with another weight map, whose tensors take `total_size` bytes."""
        metadata = {**(self.document.get("metadata") or {}), "total_size": total_size}
        return config_json.dumps({**self.document, "metadata": metadata, "weight_map": dict(weight_map)}) + "\n"


def read_index(path: str) -> Index:
    """Read an index. FileError if it is not one. The file names in it are not checked here."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > file_limits.HEADER:
            raise FileError(f"{path}: has {size} bytes; expected an index of at most {file_limits.HEADER}")
        raw = file.read(file_limits.HEADER)
    document = config_json.parsed(raw, path)
    weight_map = None if document is None else document.get("weight_map")
    is_map = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    if document is None or weight_map is None or not is_map:
        raise FileError(f"{path}: is no index of a checkpoint; expected a JSON object with a weight_map of texts")
    if not isinstance(document.get("metadata") or {}, dict):
        raise FileError(f"{path}: the metadata of the index is no JSON object")
    for name in weight_map:
        checked_name(name, path)
    return Index(path, document, weight_map)


@dataclass(frozen=True)
class SourceFile:
    """An input file, and its name (with slashes) relative to the source and to the target."""

    path: str
    name: str
    #: Whether its tensors are converted; otherwise it is copied.
    tensors: bool = True


@dataclass(frozen=True)
class Source:
    path: str
    items: tuple[SourceFile, ...]
    #: Whether one file becomes one file; otherwise a folder is written.
    single: bool
    #: Names and contents of the indexes of checkpoints in several files.
    indexes: tuple[tuple[str, Index], ...] = ()
    #: Whether all its tensors become those of one file; then the names of the files that it leaves out.
    merged: bool = False
    left_out: tuple[str, ...] = ()


def _inside(folder: str, name: str, path: str, what: str) -> str:
    """As `inside`. The links of a snapshot in the cache of Hugging Face are followed to the blobs beside it."""
    return inside(folder, name, path, what, _blobs(folder))


def _blobs(folder: str) -> str | None:
    """Where the files of a snapshot are: huggingface_hub keeps REPOSITORY/snapshots/REVISION, whose files are links to
    REPOSITORY/blobs. None if the folder is not, or not in, such a snapshot."""
    parts = os.path.realpath(folder).split(os.sep)
    for place in range(len(parts) - 2, 0, -1):
        if parts[place] == "snapshots" and parts[place - 1].startswith(("models--", "datasets--", "spaces--")):
            blobs = os.sep.join([*parts[:place], "blobs"])
            return blobs if os.path.isdir(blobs) and not os.path.islink(blobs) else None
    return None


def find(path: str, target: str, in_shards: bool = False) -> Source:
    """The files of `path` that are converted to `target`, for `in_shards` a folder. FileError; OSError if they cannot
    be read."""
    several = os.path.isdir(path) or path.endswith(SUFFIX)
    suffix = os.path.splitext(target)[1].lower()
    if suffix in SUFFIXES and (in_shards or (several and suffix != _MERGED)):
        what = "--shard-size" if in_shards else path
        raise FileError(f"{target}: is the name of a file ({suffix}), and {what} gives a folder; name a folder")
    if several and suffix in (*_PICKLED, _GGUF):
        raise FileError(f"{target}: {suffix} is a format that is not written; name a folder, or a {_MERGED} file")
    if several:
        source = _files_of(path, target)
        return _merged(source) if suffix == _MERGED else source
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FileError(f"{path}: is no regular file")
    if path.lower().endswith(_PICKLED):
        raise FileError(f"{path}: {_ADVICE}")
    if path.lower().endswith(_GGUF):
        raise FileError(f"{path}: {_NO_GGUF}")
    if in_shards:
        if not path.endswith(_MERGED):
            raise FileError(f"{path}: --shard-size is for {_MERGED} files; convert it to one first")
        return Source(path, (SourceFile(path, os.path.basename(path)),), single=False)
    return Source(path, (SourceFile(path, os.path.basename(target)),), single=True)


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[Catalogue, list[tuple[SourceFile, Model]]]]:
    """The tensors of a file, an index or a folder, and the models among its files, which stay open. FileError if it
    cannot be read as tensors."""
    catalogue, models = Catalogue(), list[tuple[SourceFile, Model]]()
    with contextlib.ExitStack() as stack:
        # A name that is no folder, so that any folder can be read.
        for item in find(path, f"{path.rstrip('/')}.none").items:
            if item.tensors:
                file = stack.enter_context(TensorFile(item.path))
                if file.model is None:
                    catalogue.add(item.path, file)
                else:
                    models.append((item, file.model))
        yield catalogue, models


def _files_of(path: str, target: str) -> Source:
    """Those of a folder, or of an index."""
    if os.path.isdir(path):
        return _folder(path, target)
    index_file = read_index(path)
    _check_shards(index_file)
    folder = os.path.dirname(path) or "."
    names = [os.path.normpath(name).replace(os.sep, "/") for name in index_file.files]
    items = tuple(_item(folder, name, path, "weight_map names") for name in names)
    check_names([item.name for item in items], path)
    return Source(path, items, single=False, indexes=((os.path.basename(path), index_file),))


def _merged(source: Source) -> Source:
    """The files whose tensors go into one file: all files of one checkpoint."""
    items = [item for item in source.items if item.name.endswith(_MERGED)]
    held = {
        os.path.normpath(os.path.join(os.path.dirname(name), file))
        for name, one in source.indexes
        for file in one.files
    }
    if len(source.indexes) > 1 or (held and any(os.path.normpath(item.name) not in held for item in items)):
        names = ", ".join(name for name, _ in source.indexes)
        raise FileError(f"{source.path}: holds more than the checkpoint of one index; name it instead: {names}")
    if not items:
        raise FileError(f"{source.path}: has no {_MERGED} file to merge")
    left_out = tuple(item.name for item in source.items if item not in items)
    return Source(source.path, tuple(items), single=True, merged=True, left_out=left_out)


def _folder(path: str, target: str) -> Source:
    if within(path, target):
        raise FileError(f"{target}: lies in the folder {path}, which is to be converted; choose another place")
    items, indexes = [], []
    for name in _names(path):
        item = _item(path, name, path, "file")
        if name.endswith(SUFFIX):
            index_file = read_index(item.path)
            # One of files that PyTorch has pickled is copied, as other files that are not read here.
            if not (index_file.files and all(file.lower().endswith(_PICKLED) for file in index_file.files)):
                _check_shards(index_file)
                indexes.append((name, index_file))
                continue
        pickled = os.path.basename(name).lower()
        if "pytorch_model" in pickled and pickled.endswith(_PICKLED):
            raise FileError(f"{item.path}: {_ADVICE}, or remove it")
        items.append(item)
    if not any(item.tensors for item in items) and any(item.name.lower().endswith(_GGUF) for item in items):
        raise FileError(f"{path}: {_NO_GGUF}")
    if not any(item.tensors for item in items):
        raise FileError(f"{path}: has no file of {', '.join(SUFFIXES)}")
    check_names([item.name for item in items] + [name for name, _ in indexes], path)
    return Source(path, tuple(items), single=False, indexes=tuple(indexes))


def _names(folder: str) -> Iterator[str]:
    """The files of a folder and its subfolders, without hidden ones, in a fixed order."""

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
    return SourceFile(_inside(folder, name, path, what), name, suffix in SUFFIXES)


def _check_shards(index_file: Index) -> None:
    if not index_file.weight_map:
        raise FileError(f"{index_file.path}: the weight_map is empty")
    for name in index_file.files:
        _inside(os.path.dirname(index_file.path) or ".", name, index_file.path, "weight_map names")
        if not name.endswith(".safetensors"):
            raise FileError(f"{index_file.path}: weight_map names {name!r}; expected .safetensors files")


def check_names(names: Sequence[str], path: str) -> None:
    """FileError if two files would become one, also where the file system ignores case."""
    if repeated := twice(names, lambda name: os.path.normpath(name).casefold()):
        raise FileError(f"{path}: {repeated[0]!r} and {repeated[1]!r} would be one file")


def twice(names: Iterable[str], key: Callable[[str], str] = str) -> tuple[str, str] | None:
    """The first name that is, by its key, the same as one before it, after that one."""
    seen: dict[str, str] = {}
    for name in names:
        if (plain := key(name)) in seen:
            return seen[plain], name
        seen[plain] = name
    return None
