# SPDX-License-Identifier: Apache-2.0
"""The config.json of a model, where it tells how weights are stored."""

from __future__ import annotations

import json
import os
from typing import Any

from gpucast.files import FileError

NAME = "config.json"
#: The entries that tell of quantized weights; the second is older.
ENTRIES = ("quantization_config", "compression_config")


def document_of(path: str) -> dict[str, Any] | None:
    """The JSON object that a file holds; None: it holds another thing."""
    try:
        with open(path, encoding="utf-8") as opened:
            document = json.load(opened)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def block_size(folder: str) -> tuple[int, int] | None:
    """The lengths of the blocks of float8 weights that have a scale each, as the config.json of a folder tells them."""
    path = os.path.join(folder, NAME)
    told = ((document_of(path) if os.path.isfile(path) else None) or {}).get(ENTRIES[0])
    found = told.get("weight_block_size") if isinstance(told, dict) else None
    if found is None:
        return None
    if not (isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found)):
        raise FileError(f"{path}: weight_block_size is {found!r}; expected two lengths")
    return found[0], found[1]
