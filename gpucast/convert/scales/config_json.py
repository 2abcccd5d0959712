# SPDX-License-Identifier: Apache-2.0
"""Reads from a model's config.json how its weights are stored. Writes JSON with every number as it was read: 1e400 does
not become infinity, and 0.10 keeps its digits.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
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


def parsed(text: bytes, path: str) -> dict[str, Any] | None:
    """The JSON object in the text of a file, for `dumps`; None if it is anything else. FileError if it is too large."""
    try:
        document = file_limits.parsed_json(text, number=Number)
        file_limits.check_nesting(document)
    except file_limits.OverLimit as error:
        raise FileError(f"{path}: {error}") from None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def document_of(path: str) -> dict[str, Any] | None:
    """As `parsed`, for a file."""
    with open_regular(path) as file:
        text = file.read(file_limits.CONFIG + 1)
    if len(text) > file_limits.CONFIG:
        raise FileError(f"{path}: expected at most {file_limits.CONFIG} bytes of {NAME}")
    return parsed(text, path)


@dataclass(frozen=True)
class Section:
    """What a file says of the quantization of weights: where, for people, and the entry."""

    where: str
    entry: dict[str, Any]
    #: Why the file cannot be read.
    problem: str = ""


#: Files of other tools that say how the weights beside them are quantized, and who writes them.
OTHERS = {
    "hf_quant_config.json": "",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quant_model_description.json": "Ascend modelslim",
    "quanto_qmap.json": "optimum-quanto",
}


def sections(folder: str) -> list[Section]:
    """All that the files of a folder say of quantized weights, however deep in a config.json."""
    found = list[Section]()
    for name, method in {NAME: "", **OTHERS}.items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or (name == "hf_quant_config.json" and found):
            continue
        if (held := document_of(path)) is None:
            found.append(Section(path, {}, "is no JSON object, so that nobody knows how the weights are quantized"))
        elif name == NAME:
            found += _sections(held, path)
        else:
            inner = held.get("quantization") if not method else {"quant_method": method}
            found.append(Section(path, inner if isinstance(inner, dict) else held))
    return found


def _sections(value: Any, where: str) -> Iterator[Section]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in entries:
        if not is_section(key, held):
            yield from _sections(held, f"{where}: {key}")
        elif isinstance(held, dict):
            yield Section(f"{where}: {key}", held)
        else:
            yield Section(f"{where}: {key}", {}, f"is {json.dumps(held)[:80]}; expected a JSON object")


def is_section(key: str | int, held: Any) -> bool:
    """Whether an entry of a config.json says how weights are quantized."""
    if key in ENTRIES:
        return bool(held)
    return isinstance(held, dict) and ("quant_method" in held or (key == "quantization" and "bits" in held))


def without_sections(document: Any, others: Container[str] = ()) -> Any:
    """A copy without what it says of quantized weights, wherever that stands, and without the keys `others`."""
    if isinstance(document, list):
        return [without_sections(held, others) for i, held in enumerate(document) if not is_section(i, held)]
    if not isinstance(document, dict):
        return document
    return {
        key: without_sections(held, others)
        for key, held in document.items()
        if held is None or not (key in others or key in ENTRIES or is_section(key, held))
    }


def block_size(sections: Iterable[Section]) -> tuple[int, int] | None:
    """Rows and columns of the blocks that share a scale, for float8 weights, by what the files of a folder say."""
    found: tuple[int, int] | None = None
    for section in sections:
        lengths = section.entry.get("weight_block_size") or _block_of_groups(section.entry)
        if lengths is None:
            continue
        if not (isinstance(lengths, list) and len(lengths) == 2 and all(type(n) is int and n > 0 for n in lengths)):
            raise FileError(f"{section.where}: weight_block_size is {lengths!r}; expected two lengths")
        if found not in (None, tuple(lengths)):
            # Which of them a weight has, its name does not tell.
            raise FileError(f"{section.where}: weight_block_size is {lengths!r}, and {list(found or ())} elsewhere")
        found = lengths[0], lengths[1]
    return found


def _block_of_groups(entry: dict[str, Any]) -> list[int] | None:
    """The block size of all groups of compressed-tensors; None if they have others, or none."""
    groups = entry.get("config_groups")
    known = [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    weights = [held for group in known if isinstance(held := group.get("weights"), dict) and held]
    found = [block_structure(one) if one.get("strategy") == "block" else None for one in weights]
    return found[0] if found and all(lengths == found[0] for lengths in found) else None


def block_structure(weights: dict[str, Any]) -> list[int] | None:
    """The block size of a group of compressed-tensors, which is a list, or text such as "128x128"."""
    block = weights.get("block_structure")
    given = block.split("x") if isinstance(block, str) else block if isinstance(block, list) else []
    sizes = [int(n) for n in given if str(n).isdecimal()]
    return sizes if len(sizes) == 2 and all(sizes) else None
