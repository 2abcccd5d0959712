# SPDX-License-Identifier: Apache-2.0
"""The index of a checkpoint in several .safetensors files.

{"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor: file}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucast.files.tensor import FileError, checked_name

SUFFIX = ".index.json"
#: Longer ones are refused before they are read.
_LONGEST = 100_000_000


@dataclass(frozen=True)
class Index:
    path: str
    #: The whole document: what is unknown in it is kept.
    document: Mapping[str, Any]
    weight_map: Mapping[str, str]

    @property
    def files(self) -> list[str]:
        """The names of the files, each once, in the order in which the index comes to them."""
        return list(dict.fromkeys(self.weight_map.values()))

    def text(self, weight_map: Mapping[str, str], total_size: int) -> str:
        """The document of a checkpoint with these tensors, which take `total_size` bytes."""
        metadata = {**(self.document.get("metadata") or {}), "total_size": total_size}
        return json.dumps({**self.document, "metadata": metadata, "weight_map": dict(weight_map)}, indent=2) + "\n"


def read(path: str) -> Index:
    """FileError for anything that is no index. Where its names lead is checked by who follows them."""
    size = os.path.getsize(path)
    if size > _LONGEST:
        raise FileError(f"{path}: has {size} bytes; expected an index of at most {_LONGEST}")
    with open(path, "rb") as file:
        raw = file.read()
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        document = None
    found = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise FileError(f"{path}: is no index of a checkpoint; expected a JSON object with a weight_map of texts")
    if not isinstance(document.get("metadata") or {}, dict):
        raise FileError(f"{path}: the metadata of the index is no JSON object")
    for name in found:
        checked_name(name, path)
    return Index(path, document, found)
