# SPDX-License-Identifier: Apache-2.0
"""Quantized arrays in files.

The codes are the tensor NAME, the other parts NAME.scales, NAME.zero_points and NAME.global_scale, as `gpucast.files`
stores their types; the metadata entry "gpucast.quantized.NAME" is a JSON object of the format's columns, the axis, the
scale layout and the original type. `gpucast convert` writes the same. A file is read through the checks of
`gpucast.files` and of `Quantized`: nothing in it is trusted or executed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gpucast.arrays.composites import Composite
from gpucast.core.dtypes import DType, dtype
from gpucast.files import FileError, file_limits
from gpucast.quantization.formats import Format
from gpucast.quantization.quantized import Quantized
from gpucast.quantization.steps import Steps

#: The key of an entry is this and the name of the codes.
PREFIX = "gpucast.quantized."
_VERSION = 1


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


def parse_entry(text: str, caller: str, name: str = PREFIX) -> tuple[Format, dict[str, Any]]:
    """The format of a metadata entry, and its axis, scale_layout and dtype, unchecked. FileError for a bad entry."""
    try:
        entry = file_limits.parsed_json(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or entry.get("version") != _VERSION:
        raise FileError(f"{caller}: the metadata {name!r} is not what this version of gpucast writes")
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
        raise FileError(f"{caller}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError) as error:
        raise FileError(f"{caller}: {error}") from None


class QuantizedInFiles(Composite):
    """`Quantized` in files."""

    def split(self, x: Quantized) -> tuple[dict[str, Any], str]:
        parts = {"" if name == "data" else f".{name}": part for name, part in x.parts().items()}
        return parts, json.dumps(entry(x.format, x.axis, x.scale_layout, x.dtype))

    def endings(self, text: str, caller: str) -> tuple[str, ...]:
        format, _ = parse_entry(text, caller)
        more = {".zero_points": format.zero_points, ".global_scale": format.global_scale}
        return "", ".scales", *(ending for ending, has in more.items() if has)

    def join(self, parts: Mapping[str, Any], text: str, library: str | None, caller: str) -> Quantized:
        format, kept = parse_entry(text, caller)
        named = {ending[1:] or "data": part for ending, part in parts.items()}
        return Quantized(**named, format=format, library=library, **kept)


COMPOSITE = QuantizedInFiles()
