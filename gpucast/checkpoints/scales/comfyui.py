# SPDX-License-Identifier: Apache-2.0
"""What ComfyUI says of a layer whose weight has scales: JSON beside the weight, or in the metadata of the file.

comfy/quant_ops.py QUANT_ALGOS, comfy/ops.py _load_quantized_module, comfy/utils.py convert_old_quants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucast.core.dtypes import DType

#: Names of the tensor, X.comfy_quant beside X.weight, and of the entry of the metadata.
LAYER, METADATA = "comfy_quant", "_quantization_metadata"
#: The empty tensor that marks a file of older versions, whose scales are X.scale_weight.
_MARKER = "scaled_fp8"

#: Formats whose numbers are codes of a type times scales, in the order of the weight.
_FORMATS = {"FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2", "INT8": "int8_tensorwise"}


def layer(element: DType) -> bytes:
    """The JSON of a layer. Its matrix is multiplied as it stands: of its inputs no scales are known."""
    return json.dumps({"format": _FORMATS[element.name], "full_precision_matrix_mult": True}).encode()


def is_marker(name: str) -> bool:
    """Whether a tensor of this name marks a file of older versions, whose parts may go under prefixes."""
    return name == _MARKER or name.endswith(f".{_MARKER}")


def layers(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """What the metadata of a file say of layers, by name; None: nothing."""
    if METADATA not in metadata:
        return None
    return _object(_object(metadata[METADATA]).get("layers"))


def layer_of(base: str, beside: bytes | None, layers: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What is said of the weight `base`, by the tensor beside it or the metadata.

    None: nothing, so it is not ComfyUI's. Empty where it cannot be told.
    """
    if beside is not None:
        return _object(beside)
    if layers is None:
        return None
    # The names may be without the prefix of the model.
    parts = base.removesuffix(".weight").split(".")
    names = (".".join(parts[start:]) for start in range(len(parts)))
    return _object(next((layers[name] for name in names if name in layers), None))


def _object(said: object) -> dict[str, Any]:
    """The JSON object in a text; a value that was one already as it is; empty for anything else."""
    if isinstance(said, str | bytes):
        try:
            said = json.loads(said)
        except (ValueError, RecursionError):
            return {}
    return said if isinstance(said, dict) else {}


def is_plain(said: Mapping[str, Any], element: DType) -> bool:
    """Whether the codes times the scales are the numbers: no other order of scales, and no rotation of the weight."""
    more = said.get("params")
    rotated = said.get("convrot") or (isinstance(more, dict) and more.get("convrot"))
    return said.get("format") == _FORMATS.get(element.name, "") and not rotated
