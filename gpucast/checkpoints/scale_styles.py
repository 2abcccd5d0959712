# SPDX-License-Identifier: Apache-2.0
"""The names, types and shapes under which scales are written, and the config that loaders of them read.

gpucast
    NAME (the codes), NAME.scales, NAME.zero_points, NAME.global_scale, as `gpucast.quantize` gives them; the metadata
    entry "gpucast.quantized.NAME" names the format.
deepseek
    DeepSeek-V3, README_WEIGHTS.md: X.weight FLOAT8E4M3FN and X.weight_scale_inv FLOAT, one for each block of 128x128,
    which *multiplies* the weights; read by transformers (quant_method fp8) and vLLM.
compressed-tensors
    vllm-project/compressed-tensors: compressors/naive_quantized (float8: X.weight, X.weight_scale), mxfp8 (scales as
    UINT8 exponents), pack_quantized (integers: X.weight_packed INT32 from the low bits on, as offsets from the lowest
    code, X.weight_scale, X.weight_shape, X.weight_zero_point packed along the first dimension), nvfp4 and mxfp4
    (X.weight_packed UINT8, the first code in the low half, X.weight_scale, X.weight_global_scale, which *divides*).
comfyui
    ComfyUI, comfy/utils.py convert_old_quants and comfy/model_base.py state_dict_for_saving: X.weight, X.scale_weight
    FLOAT of shape (), which multiplies; an empty float8 tensor scaled_fp8 marks the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from gpucast.checkpoints.stored import Packing, Stored, words
from gpucast.dtypes import DType, dtype
from gpucast.files.tensor import Spec
from gpucast.quantization import files as quantized_files
from gpucast.quantization.formats import SOURCES, Format

#: What --style takes; the first is the default.
STYLES = ("gpucast", "deepseek", "compressed-tensors", "comfyui")
#: Styles whose loaders read the config.json of a folder.
CONFIGURED = ("deepseek", "compressed-tensors")

#: The metadata entry of a tensor in our own style.
ENTRY = "gpucast.quantized."
MARKER = "scaled_fp8"
_WEIGHT = "weight"
_MODEL = "model.diffusion_model."
_FLOAT, _UINT8, _INT32, _INT64 = dtype("FLOAT"), dtype("UINT8"), dtype("INT32"), dtype("INT64")
#: What these loaders do not expect to be quantized, unless it is asked for by name: embeddings, the last layer, and the
#: routers of mixtures of experts (README_WEIGHTS.md of DeepSeek-V3; the default `ignore` of llm-compressor's recipes).
_KEPT = ("*embed*", "shared.weight", "*.shared.weight", "lm_head.*", "*.lm_head.*", "*.gate.weight")


class Unsuitable(Exception):
    """This tensor is not quantized; the text says why."""


def refused(style: str, format: Format) -> str | None:
    """Why a style cannot carry a format at all; None: it can."""
    if style == "deepseek" and format.name != "float8e4m3fn_128x128":
        return "it holds FLOAT8E4M3FN with --scale block alone"
    if style == "comfyui" and not (format.element.name.startswith("FLOAT8E") and format.block == "tensor"):
        return "it holds FLOAT8E4M3FN and FLOAT8E5M2 with --scale per-tensor alone"
    if style == "compressed-tensors" and _compressed(format) is None:
        return (
            "it holds FLOAT8E4M3FN (per-tensor, per-channel, block, mx), FLOAT4E2M1 (mx, nvfp4) and INT8, UINT8, "
            "INT4, UINT4 (per-channel, block)"
        )
    return None


def stored(style: str, name: str, shape: tuple[int, ...], format: Format, source: DType, asked_for: bool) -> Stored:
    """How a tensor lies in a file. Unsuitable for one that the style has no place for."""
    if style == "gpucast":
        return _gpucast(name, shape, format, source)
    if not name.endswith(f".{_WEIGHT}") or len(shape) != 2:
        raise Unsuitable(f"style {style} is for weights of two dimensions named *.{_WEIGHT}")
    if not asked_for and any(fnmatchcase(name, pattern) for pattern in _KEPT):
        raise Unsuitable(f"loaders of style {style} expect embeddings, lm_head and routers as they are")
    return _MAKE[style](name, shape, format)


def _gpucast(name: str, shape: tuple[int, ...], format: Format, source: DType) -> Stored:
    axis = 0 if format.block == "axis" else len(shape) - 1
    scales_shape = format.scales_shape(shape, axis)
    specs = {
        "data": Spec(name, format.element, shape),
        "scales": Spec(f"{name}.scales", format.scale, scales_shape),
    }
    if format.zero_point is not None:
        specs["zero_points"] = Spec(f"{name}.zero_points", format.zero_point, scales_shape)
    if format.global_scale:
        specs["global_scale"] = Spec(f"{name}.global_scale", _FLOAT, ())
    kind = source if source in SOURCES else _FLOAT
    entry = json.dumps(quantized_files.entry(format, axis, "linear", kind))
    return Stored(name, shape, format, specs, metadata=((ENTRY + name, entry),))


def _deepseek(name: str, shape: tuple[int, ...], format: Format) -> Stored:
    specs = {
        "data": Spec(name, format.element, shape),
        "scales": Spec(f"{name}_scale_inv", _FLOAT, format.scales_shape(shape, 1)),
    }
    return Stored(name, shape, format, specs)


def _comfyui(name: str, shape: tuple[int, ...], format: Format) -> Stored:
    scale = name.removesuffix(_WEIGHT) + "scale_weight"
    return Stored(name, shape, format, {"data": Spec(name, format.element, shape), "scales": Spec(scale, _FLOAT, ())})


def _compressed_tensors(name: str, shape: tuple[int, ...], format: Format) -> Stored:
    rows, columns = shape
    if isinstance(format.block, tuple) and format.min_ndim == 1 and columns % format.block[-1]:
        raise Unsuitable(f"style compressed-tensors needs rows of a multiple of {format.block[-1]} elements")
    element, bits = format.element, format.element.bits
    scales_shape = format.scales_shape(shape, 0 if format.block == "axis" else 1)
    scales_shape = {"tensor": (1,), "axis": (rows, 1)}.get(str(format.block), scales_shape)
    packing: Packing = "plain"
    specs = {"data": Spec(name, element, shape)}
    if element.family == "int":
        packing = "words"
        specs = {"data": Spec(f"{name}_packed", _INT32, (rows, words(columns, bits)))}
    elif bits == 4:
        packing = "bytes"
        specs = {"data": Spec(f"{name}_packed", _UINT8, (rows, columns // 2))}
    scale = _UINT8 if format.scale.name == "FLOAT8E8M0" else format.scale
    specs["scales"] = Spec(f"{name}_scale", scale, scales_shape)
    if format.zero_points:
        specs["zero_points"] = Spec(f"{name}_zero_point", _INT32, (words(rows, bits), math.prod(scales_shape) // rows))
    if format.global_scale:
        specs["global_scale"] = Spec(f"{name}_global_scale", _FLOAT, (1,))
    if packing == "words":
        specs["shape"] = Spec(f"{name}_shape", _INT64, (2,))
    return Stored(name, shape, format, specs, packing, divides=format.global_scale)


_MAKE: dict[str, Callable[[str, tuple[int, ...], Format], Stored]] = {
    "deepseek": _deepseek,
    "compressed-tensors": _compressed_tensors,
    "comfyui": _comfyui,
}


def marked(found: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors of a file of style comfyui, the first with the one that marks the file.

    Its name has the prefix under which a whole checkpoint keeps the model, and ComfyUI looks for the mark.
    """
    marked = dict(found)
    prefix = _MODEL if found and all(name.startswith(_MODEL) for name in found) else ""
    for name, first in list(found.items())[:1]:
        mark = Spec(prefix + MARKER, first.format.element, (0,))
        marked[name] = replace(first, specs={**first.specs, "marker": mark})
    return marked


# ---- config.json ----


def config(style: str, format: Format, kept: Sequence[str]) -> dict[str, Any]:
    """The quantization_config of a model; `kept`: the modules whose weights are not quantized."""
    if style == "deepseek":
        found: dict[str, Any] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": list(format.block),
        }
        return found | ({"modules_to_not_convert": list(kept)} if kept else {})
    name = _compressed(format)
    assert name is not None
    element = format.element
    weights: dict[str, Any] = {
        "num_bits": element.bits,
        "type": element.family,
        "symmetric": not format.zero_points,
        "dynamic": False,
    }
    if isinstance(format.block, str):
        weights["strategy"] = {"tensor": "tensor", "axis": "channel"}[format.block]
    elif format.min_ndim == 2:
        weights |= {"strategy": "block", "block_structure": list(format.block)}
    else:
        weights |= {"strategy": "tensor_group" if format.global_scale else "group", "group_size": format.block[-1]}
    if format.scale is not _FLOAT:
        weights["scale_dtype"] = "torch.float8_e4m3fn" if format.global_scale else "torch.uint8"
    activations = None
    if name == "float-quantized":
        # As the presets FP8_DYNAMIC and FP8_BLOCK: loaders multiply in float8, activations scaled as they come.
        activations = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True, "strategy": "token"}
        if format.min_ndim == 2:
            activations |= {"strategy": "group", "group_size": format.block[-1]}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
        "format": name,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(kept),
    }


def _compressed(format: Format) -> str | None:
    """The name that compressed-tensors has for a format; None where it has none."""
    element = format.element
    if element.name == "FLOAT8E4M3FN":
        return "mxfp8-quantized" if format.scale is not _FLOAT else "float-quantized"
    if element.name == "FLOAT4E2M1":
        return "nvfp4-pack-quantized" if format.global_scale else "mxfp4-pack-quantized"
    if element.family == "int" and element.bits in (4, 8) and format.block != "tensor":
        return "pack-quantized"
    return None
