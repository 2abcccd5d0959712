# SPDX-License-Identifier: Apache-2.0
"""ComfyUI's description of a layer whose weight has scales: JSON in a tensor of its own, or in the file's metadata.

comfy/quant_ops.py QUANT_ALGOS, comfy/ops.py _load_quantized_module, comfy/utils.py convert_old_quants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def layers(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The descriptions of layers in the metadata of a file, by layer name; None if there are none."""
    if METADATA not in metadata:
        return None
    return _object(_object(metadata[METADATA]).get("layers"))


def layer_of(base: str, text: bytes | None, layers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The description of the weight `base`: `text` of its own tensor, else the entry in `layers` (the metadata).

    None if there is none, so that the weight is not ComfyUI's; empty if it cannot be parsed.
    """
    if text is not None:
        return _object(text)
    if layers is None:
        return None
    # The names in the metadata may lack the prefix of the model.
    parts = base.removesuffix(".weight").split(".")
    names = (".".join(parts[start:]) for start in range(len(parts)))
    return _object(next((layers[name] for name in names if name in layers), None))


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
