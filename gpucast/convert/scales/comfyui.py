# SPDX-License-Identifier: Apache-2.0
"""ComfyUI's description of a layer whose weight has scales: JSON in a separate tensor, or in the file's metadata.

comfy/quant_ops.py QUANT_ALGOS, comfy/ops.py _load_quantized_module, comfy/utils.py convert_old_quants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpucast.convert.scales.stored import Packing, Stored
from gpucast.core.dtypes import DType, dtype
from gpucast.files import Spec, Tensor, file_limits
from gpucast.quantization.formats import FORMATS, Format
from gpucast.quantization.scale_orders import order

_UINT8 = dtype("UINT8")
#: The last part of the tensor's name (X.comfy_quant describes X.weight), and the key of the metadata entry.
LAYER, METADATA = "comfy_quant", "_quantization_metadata"
#: An empty tensor of this name marks a file of older versions, whose scales are X.scale_weight.
_MARKER = "scaled_fp8"
#: Characters of a description that an error shows.
_SHOWN = 80

#: ComfyUI's name of NVFP4: the first of two codes in the high half of a byte, and the scales in the order that cuBLAS
#: reads, as a matrix of whole tiles (comfy_kitchen, backends/eager/quantization.py quantize_nvfp4).
NVFP4 = "nvfp4"
#: ComfyUI's names of the formats in which a number is its code times a scale, and nothing is reordered.
_FORMATS = {"FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E5M2": "float8_e5m2", "INT8": "int8_tensorwise"}
#: comfy-kitchen fills the rows and columns of NVFP4 up to a multiple of this.
MULTIPLE = 16


def layer(element: DType) -> bytes:
    """The JSON of a layer. It asks for a multiplication in full precision, since scales for the inputs are unknown."""
    return json.dumps({"format": _FORMATS.get(element.name, NVFP4), "full_precision_matrix_mult": True}).encode()


def is_nvfp4(format: Format) -> bool:
    return format.element.name == "FLOAT4E2M1" and format.global_scale and format.block == (16,)


def is_marker(name: str) -> bool:
    """Whether a tensor of this name marks a file of older versions; the name may have a prefix."""
    return name == _MARKER or name.endswith(f".{_MARKER}")


#: The descriptions of layers in the metadata of a file, by names that may lack the prefix of the model.
Layers = dict[str, dict[str, Any]]


def layers(metadata: Mapping[str, str]) -> Layers | None:
    """The descriptions of layers in the metadata of a file; None if there are none."""
    if METADATA not in metadata:
        return None
    return {name: _object(entry) for name, entry in _object(_object(metadata[METADATA]).get("layers")).items()}


def layer_of(base: str, text: bytes | None, layers: Layers | None) -> dict[str, Any] | None:
    """The description of the weight `base`: `text` of its own tensor, else the entry in `layers` (the metadata) of the
    longest name that is the weight's, or its end.

    None if there is none, so that the weight is not ComfyUI's; empty if it cannot be parsed.
    """
    if text is not None or layers is None:
        return None if text is None else _object(text)
    parts = base.removesuffix(".weight").split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((layers[name] for name in ends if name in layers), {})


#: The formats whose scales are in the order that cuBLAS reads (comfy_kitchen, TensorCoreNVFP4Layout and others).
_SWIZZLED = {NVFP4: FORMATS["nvfp4"], "mxfp8": FORMATS["mxfp8e4m3"]}


def swizzled(name: str, shape: tuple[int, ...], format: Format) -> tuple[dict[str, Spec], Packing]:
    """The tensors that store a weight of this shape with such scales, by part, and how its codes are packed."""
    (rows, columns), (block,), element = shape, format.lengths(shape, 1)[1:], format.element
    scale = _UINT8 if format.scale.name == "FLOAT8E8M0" else format.scale
    is_packed = element.bits < 8
    specs = {
        "data": Spec(name, _UINT8 if is_packed else element, (rows, columns * element.bits // 8)),
        "scales": Spec(f"{name}_scale", scale, order("128x4").padded(rows, columns // block, 1)),
    }
    if format.global_scale:
        specs["global_scale"] = Spec(f"{name}_scale_2", dtype("FLOAT"), ())
    return specs, "swapped bytes" if is_packed else "plain"


def stored_swizzled(name: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Stored | None:
    """How a weight is stored whose scales ComfyUI keeps in the order of cuBLAS; None for other formats. ValueError if
    its parts do not fit together."""
    data, format = tensors["data"], _SWIZZLED.get(str(description.get("format")))
    if format is None or _is_rotated(description):
        return None
    per_byte, (block,) = 8 // format.element.bits, format.lengths((1, 1 << 20), 1)[1:]
    if data.dtype is not (_UINT8 if per_byte > 1 else format.element):
        return None
    if len(data.shape) != 2 or not data.size or data.shape[1] * per_byte % block:
        raise ValueError(f"tensor {data.name!r} has shape {data.shape}; expected rows of whole groups of {block} codes")
    shape = data.shape[0], data.shape[1] * per_byte
    specs, packing = swizzled(name, shape, format)
    held = dict(tensors)
    if "second_scale" in held:
        held["global_scale"] = held["second_scale"]
    for part, spec in specs.items():
        if part not in held:
            raise ValueError(f"tensor {data.name!r}: {spec.name!r} is missing")
        found = held[part]
        kinds = (spec.dtype, format.scale) if part == "scales" else (spec.dtype,)
        if found.dtype not in kinds or found.shape not in (spec.shape, spec.shape or (1,)):
            raise ValueError(f"tensor {found.name!r} is {found.kind} {found.shape}; expected {spec.dtype} {spec.shape}")
        specs[part] = replace(spec, dtype=found.dtype, shape=found.shape)
    return Stored(name, shape, format, specs, packing, swizzled=True)


def _object(value: object) -> dict[str, Any]:
    """The JSON object in a text; a dict is returned as it is; anything else gives an empty dict."""
    if isinstance(value, str | bytes):
        try:
            value = file_limits.parsed_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def is_plain(description: Mapping[str, Any], element: DType) -> bool:
    """Whether a number is its code times its scale: the scales are not reordered, and the weight is not rotated."""
    return description.get("format") == _FORMATS.get(element.name, "") and not _is_rotated(description)


def _is_rotated(description: Mapping[str, Any]) -> bool:
    params = description.get("params")
    return bool(description.get("convrot") or (isinstance(params, dict) and params.get("convrot")))


def shown(description: Mapping[str, Any]) -> str:
    """A description as an error shows it, shortened."""
    text = repr({key: description[key] for key in ("format", "convrot", "params") if key in description})
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
