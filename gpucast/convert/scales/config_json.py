# SPDX-License-Identifier: Apache-2.0
"""Reads from a model's config.json how its weights are stored. Writes JSON with every number as it was read: 1e400 does
not become infinity, and 0.10 keeps its digits.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from typing import Any

from gpucast.files import FileError, file_limits
from gpucast.files.atomic import open_regular

NAME = "config.json"
#: The entries that describe quantized weights; the second is the older name.
ENTRIES = ("quantization_config", "compression_config")


class Number(float):
    """A number with a fraction or an exponent, and its text."""

    text: str

    def __new__(cls, text: str) -> Number:
        made = super().__new__(cls, text)
        made.text = text
        return made


def dumps(document: Any) -> str:
    """The text of a document, indented by 2, with the texts of its `Number`."""
    mark, texts = secrets.token_hex(16), list[str]()

    def marked(value: Any) -> Any:
        if isinstance(value, Number):
            texts.append(value.text)
            return f"{mark}{len(texts) - 1}"
        if isinstance(value, dict):
            return {key: marked(one) for key, one in value.items()}
        return [marked(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(marked(document), indent=2)
    return re.sub(rf'"{mark}(\d+)"', lambda found: texts[int(found[1])], text)


def document_of(path: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file holds anything else. FileError if it is too large to be read."""
    with open_regular(path) as file:
        text = file.read(file_limits.CONFIG + 1)
    if len(text) > file_limits.CONFIG:
        raise FileError(f"{path}: expected at most {file_limits.CONFIG} bytes of {NAME}")
    try:
        document = file_limits.parsed_json(text, number=Number)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def block_size(folder: str) -> tuple[int, int] | None:
    """Rows and columns of the blocks that share a scale, for float8 weights, from the config.json of a folder."""
    path = os.path.join(folder, NAME)
    quantization = ((document_of(path) if os.path.isfile(path) else None) or {}).get(ENTRIES[0])
    lengths = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if lengths is None:
        return None
    if not (isinstance(lengths, list) and len(lengths) == 2 and all(type(n) is int and n > 0 for n in lengths)):
        raise FileError(f"{path}: weight_block_size is {lengths!r}; expected two lengths")
    return lengths[0], lengths[1]
