# SPDX-License-Identifier: Apache-2.0
"""The same file as other libraries read it: numpy, safetensors and onnx. What they refuse is not compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors
from onnx import numpy_helper


def _numpy(path: Path) -> dict[str, bytes]:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return {path.stem: _bytes(found)}
    with found:
        return {name: _bytes(found[name]) for name in found.files}


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("=")).tobytes()


def _safetensors(path: Path) -> dict[str, bytes]:
    return {name: bytes(found["data"]) for name, found in safetensors.deserialize(path.read_bytes())}


def _pb(path: Path) -> dict[str, bytes]:
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    return {tensor.name or path.stem: _bytes(numpy_helper.to_array(tensor))}


def _onnx(path: Path) -> dict[str, bytes]:
    model = onnx.load(path)
    return {tensor.name: _bytes(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}


_READERS: dict[str, Callable[[Path], dict[str, bytes]]] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": _safetensors,
    ".pb": _pb,
    ".onnx": _onnx,
}


def compared(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> int:
    """How many tensors have the bytes that the other library gives; AssertionError where one has others."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            others = _READERS[path.suffix](path)
    except Exception:
        # It raises what it likes.
        return 0
    count = 0
    for name, x in tensors.items():
        # What is packed, or has a type that the other one lacks, comes in other bytes.
        other = others.get(name)
        if x.dtype.isbuiltin == 1 and x.dtype.kind in "fiu" and other is not None and len(other) == x.nbytes:
            assert x.tobytes() == other, name
            count += 1
    return count
