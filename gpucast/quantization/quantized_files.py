# SPDX-License-Identifier: Apache-2.0
"""Quantized arrays in .safetensors files.

The parts are the tensors data, scales, zero_points and global_scale, as `gpucast.files` stores their types; the
metadata entry "gpucast.quantized" is a JSON object of the format's columns, the axis, the scale layout and the original
type. A file is read through the checks of `gpucast.files` and of `Quantized`: nothing in it is trusted or executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.files import FileError, TensorFile, file_limits
from gpucast.files import save as save_tensors
from gpucast.quantization.formats import Format
from gpucast.quantization.steps import Steps

_ENTRY = "gpucast.quantized"
_SUFFIX = ".safetensors"
_VERSION = 1
_Made = TypeVar("_Made")


def save(path: str | os.PathLike[str], parts: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Write arrays on the host with the metadata of `entry`, atomically. FileError for another suffix."""
    save_tensors(_checked(path), parts, {_ENTRY: json.dumps(metadata)})


def entry(format: Format, axis: int, scale_layout: str, kind: DType) -> dict[str, Any]:
    """The metadata of a quantized array; `kind` is the type that was quantized."""
    return {
        "version": _VERSION,
        "format": format.name,
        "element": format.element.name,
        "scale": format.scale.name,
        "block": format.block,
        "rule": format.rule,
        "zero_points": format.zero_points,
        "global_scale": format.global_scale,
        "steps": None if format.steps is None else dataclasses.asdict(format.steps),
        "axis": axis,
        "scale_layout": scale_layout,
        "dtype": kind.name,
    }


def parse_entry(text: str, path: str, name: str = _ENTRY) -> tuple[Format, dict[str, Any]]:
    """The format of a metadata entry, and its axis, scale_layout and dtype, unchecked. FileError for a bad entry."""
    try:
        entry = file_limits.parsed_json(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or entry.get("version") != _VERSION:
        raise FileError(f"{path}: the metadata {name!r} is not what this version of gpucast writes")
    try:
        block = entry["block"]
        format = Format(
            entry["format"],
            dtype(entry["element"]),
            dtype(entry["scale"]),
            tuple(block) if isinstance(block, list) else block,
            entry["rule"],
            entry["zero_points"],
            entry["global_scale"],
            Steps(**steps) if (steps := entry.get("steps")) else None,
        )
        return format, {key: entry[key] for key in ("axis", "scale_layout", "dtype")}
    except KeyError as error:
        raise FileError(f"{path}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: {error}") from None


def load(path: str | os.PathLike[str], make: Callable[..., _Made]) -> _Made:
    """Read a file that `save` wrote, and `make` a `Quantized` of it.

    FileError for any other file, OSError for one that cannot be read.
    """
    name = _checked(path)
    with TensorFile(name) as file:
        if _ENTRY not in file.metadata:
            raise FileError(f"{name}: holds no quantized array: the metadata has no {_ENTRY!r}")
        format, kept = parse_entry(file.metadata[_ENTRY], name)
        tensors = {tensor.name: tensor for tensor in file.tensors}
        unknown = tensors.keys() - {"data", "scales", "zero_points", "global_scale"}
        if unknown:
            raise FileError(f"{name}: {sorted(unknown)[0]!r} is no part of a quantized array")
        parts = {part: _packed(tensor.read()) for part, tensor in tensors.items()}
    for part in ("data", "scales"):
        if part not in parts:
            raise FileError(f"{name}: {part!r} is missing")
    try:
        return make(parts.pop("data"), parts.pop("scales"), format, **parts, **kept)
    except (TypeError, ValueError) as error:
        raise FileError(f"{name}: {error}") from None


def _checked(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    if os.path.splitext(name)[1].lower() != _SUFFIX:
        raise FileError(f"{name}: a quantized array is kept in a {_SUFFIX} file")
    return name


def _packed(array: Any) -> Any:
    return PackedArray.pack(array) if dtype(array.dtype).packed else array
