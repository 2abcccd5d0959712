# SPDX-License-Identifier: Apache-2.0
"""The index of a checkpoint in several .safetensors files:

{"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor: file}}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucast.checkpoints.scales import json_numbers
from gpucast.files import file_limits
from gpucast.files.inside import open_regular
from gpucast.files.tensor import FileError, checked_name

SUFFIX = ".index.json"


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
        return json_numbers.dumps({**self.document, "metadata": metadata, "weight_map": dict(weight_map)}) + "\n"


def read(path: str) -> Index:
    """Read an index. FileError if it is not one. The file names in it are not checked here."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > file_limits.HEADER:
            raise FileError(f"{path}: has {size} bytes; expected an index of at most {file_limits.HEADER}")
        raw = file.read(file_limits.HEADER)
    try:
        document = file_limits.parsed_json(raw, number=json_numbers.Number)
    except ValueError:
        document = None
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise FileError(f"{path}: is no index of a checkpoint; expected a JSON object with a weight_map of texts")
    if not isinstance(document.get("metadata") or {}, dict):
        raise FileError(f"{path}: the metadata of the index is no JSON object")
    for name in weight_map:
        checked_name(name, path)
    return Index(path, document, weight_map)
