# SPDX-License-Identifier: Apache-2.0
"""ComfyUI's description of a layer whose weight has scales: JSON in a tensor of its own, or in the file's metadata.

comfy/quant_ops.py QUANT_ALGOS, comfy/ops.py _load_quantized_module, comfy/utils.py convert_old_quants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpucast.core.dtypes import DType
from gpucast.files import limits

#: The last part of the tensor's name (X.comfy_quant describes X.weight), and the key of the metadata entry.
LAYER, METADATA = "comfy_quant", "_quantization_metadata"
#: An empty tensor of this name marks a file of older versions, whose scales are X.scale_weight.
_MARKER = "scaled_fp8"

#: ComfyUI's names of the formats in which a number is its code times a scale, and nothing is reordered.
_FORMATS = {"FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2", "INT8": "int8_tensorwise"}


def layer(element: DType) -> bytes:
    """The JSON of a layer. It asks for a multiplication in full precision, since scales for the inputs are unknown."""
    return json.dumps({"format": _FORMATS[element.name], "full_precision_matrix_mult": True}).encode()


def is_marker(name: str) -> bool:
    """Whether a tensor of this name marks a file of older versions; the name may have a prefix."""
    return name == _MARKER or name.endswith(f".{_MARKER}")


class Layers:
    """The descriptions of layers in the metadata of a file, by names that may lack the prefix of the model."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries
        self._names = {list(_keys(name))[-1]: name for name in entries}

    def of(self, weight: str) -> Any:
        """The description of the longest name that is the weight's, or its end; None if there is none."""
        layer = weight.removesuffix(".weight")
        names = [self._names[key] for key in _keys(layer) if key in self._names]
        ends = (name for name in reversed(names) if f".{layer}".endswith(f".{name}"))
        return self._entries[name] if (name := next(ends, None)) is not None else None


def _keys(name: str) -> Iterator[int]:
    """A hash of each end of a name that begins with a part of it, the shortest first. Each is made of the one before:
    a name may have thousands of parts."""
    key = 0
    for part in reversed(name.split(".")):
        key = hash((part, key))
        yield key


def layers(metadata: Mapping[str, str]) -> Layers | None:
    """The descriptions of layers in the metadata of a file; None if there are none."""
    if METADATA not in metadata:
        return None
    return Layers(_object(_object(metadata[METADATA]).get("layers")))


def layer_of(base: str, text: bytes | None, layers: Layers | None) -> dict[str, Any] | None:
    """The description of the weight `base`: `text` of its own tensor, else the entry in `layers` (the metadata).

    None if there is none, so that the weight is not ComfyUI's; empty if it cannot be parsed.
    """
    if text is not None:
        return _object(text)
    return None if layers is None else _object(layers.of(base))


def _object(value: object) -> dict[str, Any]:
    """The JSON object in a text; a dict is returned as it is; anything else gives an empty dict."""
    if isinstance(value, str | bytes):
        try:
            value = limits.parsed_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def is_plain(description: Mapping[str, Any], element: DType) -> bool:
    """Whether a number is its code times its scale: the scales are not reordered, and the weight is not rotated."""
    params = description.get("params")
    rotated = description.get("convrot") or (isinstance(params, dict) and params.get("convrot"))
    return description.get("format") == _FORMATS.get(element.name, "") and not rotated
