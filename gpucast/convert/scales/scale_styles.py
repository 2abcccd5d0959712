# SPDX-License-Identifier: Apache-2.0
"""The styles of storing scales: names, types and shapes of the tensors, and the config that loaders read.

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
    ComfyUI, comfy/ops.py _load_quantized_module: X.weight, X.weight_scale FLOAT of shape (), which multiplies, and
    X.comfy_quant UINT8, the JSON of `gpucast.convert.scales.comfyui`; NVFP4 as that module says.
qdq
    ONNX models: X_quantized, X_scale and X_zero_point, from which DequantizeLinear gives X.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from gpucast.convert.scales import comfyui
from gpucast.convert.scales.stored import Packing, Stored, words
from gpucast.convert.streaming.pieces import axis
from gpucast.core.dtypes import DType, dtype
from gpucast.files.tensor import Linear, Spec
from gpucast.quantization import quantized_files
from gpucast.quantization.formats import ROW, SOURCES, Format

#: The style without --style, and that of models.
DEFAULT, MODELS = "gpucast", "qdq"
#: The metadata entry of a tensor in our own style.
ENTRY = quantized_files.PREFIX
#: The metadata entry of a file in another style for the recipe of its codes and scales.
RECIPE = "gpucast_recipe"
_WEIGHT = "weight"
_SQUARE = (128, 128)
_MX = {
    "FLOAT8E4M3FN": "mxfp8-quantized",
    "FLOAT6E2M3": "mxfp6-pack-quantized",
    "FLOAT4E2M1": "mxfp4-pack-quantized",
}
_FLOAT8 = "float-quantized"
#: What follows the name of such a tensor in those of its scales.
_OWN = (".scales", ".zero_points", ".global_scale")
_FLOAT, _UINT8, _INT32, _INT64 = dtype("FLOAT"), dtype("UINT8"), dtype("INT32"), dtype("INT64")
#: Weights that loaders of these styles expect unquantized; they are quantized only if chosen by name. Embeddings, of
#: positions, too (GPT-2, T5), the last layer, routers of mixtures of experts, and the projections into layers that
#: predict further tokens. Sources: README_WEIGHTS.md of DeepSeek-V3; `ignore` in llm-compressor's recipes; layers
#: without quant_config in vLLM's models/qwen2_moe.py, deepseek_v2.py and deepseek_mtp.py. The last row: what else
#: transformers holds in an nn.Embedding, of which its quantizers know nothing (DETR's queries, CTRL's `w`).
_KEPT = (
    *("*embed*", "shared.weight", "*.shared.weight", "lm_head.*", "*.lm_head.*", "*.shared_head.head.*"),
    *("*wte.weight", "*wpe.weight", "*_emb.weight", "*_token.weight", "*_tokens.weight", "*attention_bias.weight"),
    *("*.gate.weight", "*.gate.wg.weight", "*.shared_expert_gate.*", "*router*", "*.eh_proj.*", "*.weights_proj.*"),
    *(
        "query.weight",
        "*.query_feat.weight",
        "*queries_features.weight",
        "*reference_points.weight",
        "*.patterns.weight",
    ),
    *("*_resolution.weight", "*codebook.weight", "*.bias_values.weight", "*.prompt_ctx.weight", "transformer.w.weight"),
)
#: Quantized although its rows are no multiple of the block: DeepSeek-V3 has 576 rows here, in five blocks, and vLLM
#: joins them to q_a_proj, which is quantized.
_RAGGED = "*.kv_a_proj_with_mqa.weight"
#: The last layer of most models. A checkpoint with tied embeddings has no tensor for it.
_HEAD = "lm_head"
#: The same of other models, by their types: transformers, the `_tied_weights_keys` of its classes.
_HEADS = {
    "cls.predictions.decoder": (
        *("bert", "big_bird", "blip", "blip_text_model", "deberta", "deberta-v2", "ernie", "fnet", "layoutlm"),
        *("lxmert", "megatron-bert", "mobilebert", "mra", "nomic_bert", "nystromformer", "roc_bert", "roformer"),
        *("squeezebert", "tapas", "visual_bert", "yoso"),
    ),
    "proj_out": ("canary", "cohere_asr", "moonshine", "moonshine_streaming", "whisper"),
    "decoder": ("modernbert", "modernbert-decoder"),
    "generator_lm_head": ("convbert", "electra"),
    "pred_layer.proj": ("flaubert", "xlm"),
    "mlm_score.decoder": ("bridgetower", "vilt"),
    "output_projection": ("biogpt", "fsmt", "trocr"),
    "lm_loss": ("xlnet",),
    "predictions.decoder": ("albert",),
    "entity_predictions.decoder": ("luke",),
    "vocab_projector": ("distilbert",),
    "embed_out": ("gpt_neox_japanese",),
    "head": ("rwkv",),
    "output": ("git",),
    "ctc_head": ("granite_speech5",),
    "unembedding_projection": ("neomme",),
}


class Unsuitable(Exception):
    """The style has no place for this tensor, so it is not quantized; the text says why."""


@dataclass(frozen=True)
class Style:
    """How one loader, or several, have scales stored."""

    loaders: tuple[str, ...]
    #: The tensors for a name, a shape, a format and the type of the numbers.
    store: Callable[[str, tuple[int, ...], Format, DType], Stored]
    #: Whether it has a place for a format, and the formats for which it has one.
    takes: Callable[[Format], bool] = lambda format: True
    held: str = ""
    #: The library whose style it is, if that writes it, too.
    writer: str | None = None
    #: Whether its loaders read the config.json of a folder.
    is_configured: bool = False


def for_recipe(format: Format, library: str) -> str | None:
    """The style whose loaders read a config.json and take a recipe's numbers: that of its own library, else the one
    that holds fewer formats."""
    styles = sorted((name for name, one in STYLES.items() if one.is_configured), key=lambda one: one != "deepseek")
    takes = [name for name in styles if STYLES[name].takes(form(name, format))]
    return library if library in takes else next(iter(takes), None)


def form(style: str, format: Format) -> Format:
    """A recipe's format as a style stores it: for weights of two dimensions rows are those of the first axis."""
    return format if style == DEFAULT or format.block != (ROW,) else replace(format, block="axis")


def stored(style: str, name: str, shape: tuple[int, ...], format: Format, source: DType, asked_for: bool) -> Stored:
    """How a style stores a tensor. Raises Unsuitable if it has no place for the tensor."""
    if style in (DEFAULT, MODELS):
        return STYLES[style].store(name, shape, format, source)
    if not name.endswith(f".{_WEIGHT}") or len(shape) != 2:
        raise Unsuitable(f"style {style} is for weights of two dimensions named *.{_WEIGHT}")
    if not asked_for and any(fnmatchcase(name, pattern) for pattern in _KEPT):
        raise Unsuitable(f"loaders of style {style} expect embeddings, lm_head and routers as they are")
    if isinstance(format.block, tuple):
        # No loader of these styles takes ragged blocks: kernels scale the inputs of a layer in whole groups, vLLM joins
        # layers at whole blocks, and transformers derives the block size from the shape of the scales.
        if shape[1] % format.block[-1]:
            raise Unsuitable(f"loaders of style {style} need rows of a multiple of {format.block[-1]} elements")
        if format.min_ndim == 2 and shape[0] % format.block[0] and not _is_ragged(style, name, shape, format):
            raise Unsuitable(f"loaders of style {style} need a multiple of {format.block[0]} rows")
    return STYLES[style].store(name, shape, format, source)


def _is_ragged(style: str, name: str, shape: tuple[int, ...], format: Format) -> bool:
    """Whether a weight is quantized although its last block of rows is not whole, and no loader takes it for another:
    of deepseek's scales transformers divides the rows by their number, and refuses a remainder alone."""
    rows = shape[0]
    is_misread = style == "deepseek" and rows % format.scales_shape(shape, 1)[0] == 0
    return fnmatchcase(name, _RAGGED) and not is_misread


def described_by(name: str, metadata: Mapping[str, str]) -> str:
    """The tensor whose entry in the metadata describes the tensor `name`: itself, or the codes that it scales; `name`
    where none does."""
    base = next((name.removesuffix(ending) for ending in _OWN if name.endswith(ending)), name)
    return base if ENTRY + base in metadata else name


def _gpucast(name: str, shape: tuple[int, ...], format: Format, source: DType) -> Stored:
    along = axis(format, len(shape))
    scales_shape = format.scales_shape(shape, along)
    specs = {
        "data": Spec(name, format.element, shape),
        "scales": Spec(f"{name}.scales", format.scale, scales_shape),
    }
    if format.zero_point is not None:
        specs["zero_points"] = Spec(f"{name}.zero_points", format.zero_point, scales_shape)
    if format.global_scale:
        specs["global_scale"] = Spec(f"{name}.global_scale", _FLOAT, ())
    kind = source if source in SOURCES else _FLOAT
    entry = json.dumps(quantized_files.entry(format, along, "linear", kind))
    return Stored(name, shape, format, specs, metadata=((ENTRY + name, entry),))


def _qdq(name: str, shape: tuple[int, ...], format: Format, _: DType) -> Stored:
    """The names that onnxruntime's own quantizer gives."""
    along = None if format.block == "tensor" else axis(format, len(shape))
    scales_shape = () if along is None else format.scales_shape(shape, along)
    scales, zero_points = f"{name}_scale", None if format.zero_point is None else f"{name}_zero_point"
    block = format.block[-1] if isinstance(format.block, tuple) else 0
    linear = Linear(name, scales, zero_points, along, block)
    specs = {
        "data": Spec(f"{name}_quantized", format.element, shape, linear=linear),
        "scales": Spec(scales, format.scale, scales_shape),
    }
    if zero_points is not None:
        # Of the type of the codes, as the operator asks.
        specs["zero_points"] = Spec(zero_points, format.element, scales_shape)
    return Stored(name, shape, format, specs)


def _deepseek(name: str, shape: tuple[int, ...], format: Format, _: DType) -> Stored:
    # Scales that are powers of two are FLOATs, too, in DeepSeek-V3.1.
    specs = {
        "data": Spec(name, format.element, shape),
        "scales": Spec(f"{name}_scale_inv", _FLOAT, format.scales_shape(shape, 1)),
    }
    return Stored(name, shape, format, specs)


def _comfyui(name: str, shape: tuple[int, ...], format: Format, _: DType) -> Stored:
    layer = comfyui.layer(format.element)
    described = {"layer": Spec(name.removesuffix(_WEIGHT) + comfyui.LAYER, _UINT8, (len(layer),))}
    if comfyui.is_nvfp4(format):
        if shape[0] % comfyui.MULTIPLE:
            raise Unsuitable(f"ComfyUI needs a multiple of {comfyui.MULTIPLE} rows")
        specs, packing = comfyui.swizzled(name, shape, format)
        return Stored(name, shape, format, specs | described, packing, layer=layer, swizzled=True)
    specs = {"data": Spec(name, format.element, shape), "scales": Spec(f"{name}_scale", _FLOAT, ())} | described
    return Stored(name, shape, format, specs, layer=layer)


def _compressed_tensors(name: str, shape: tuple[int, ...], format: Format, _: DType) -> Stored:
    rows, columns = shape
    element, bits = format.element, format.element.bits
    scales_shape = format.scales_shape(shape, axis(format))
    scales_shape = {"tensor": (1,), "axis": (rows, 1)}.get(str(format.block), scales_shape)
    packing: Packing = "plain"
    specs = {"data": Spec(name, element, shape)}
    if element.family == "int":
        packing = "words"
        specs = {"data": Spec(f"{name}_packed", _INT32, (rows, words(columns, bits)))}
    elif bits < 8:
        packing = "bytes"
        specs = {"data": Spec(f"{name}_packed", _UINT8, (rows, columns * bits // 8))}
    scale = _UINT8 if format.scale.name == "FLOAT8E8M0" else format.scale
    specs["scales"] = Spec(f"{name}_scale", scale, scales_shape)
    if format.zero_points:
        specs["zero_points"] = Spec(f"{name}_zero_point", _INT32, (words(rows, bits), math.prod(scales_shape) // rows))
    if format.global_scale:
        specs["global_scale"] = Spec(f"{name}_global_scale", _FLOAT, (1,))
    if packing == "words":
        specs["shape"] = Spec(f"{name}_shape", _INT64, (2,))
    return Stored(name, shape, format, specs, packing, divides=format.global_scale)


#: The values of --style.
STYLES = {
    DEFAULT: Style(("gpucast",), _gpucast),
    "compressed-tensors": Style(
        ("vLLM", "transformers", "SGLang"),
        _compressed_tensors,
        lambda format: _compressed(format) is not None,
        "FLOAT8E4M3FN (per-tensor, per-channel, block, mx), FLOAT6E2M3 (mx), FLOAT4E2M1 (mx, nvfp4) and INT8, UINT8, "
        "INT4, UINT4 (per-channel, block)",
        "compressed-tensors",
        is_configured=True,
    ),
    "deepseek": Style(
        ("transformers", "vLLM", "SGLang"),
        _deepseek,
        lambda format: (format.element.name, format.block) == ("FLOAT8E4M3FN", _SQUARE),
        "FLOAT8E4M3FN with --scale block alone",
        is_configured=True,
    ),
    "comfyui": Style(
        ("ComfyUI",),
        _comfyui,
        lambda format: (
            (format.element.name.startswith("FLOAT8E") and format.block == "tensor") or comfyui.is_nvfp4(format)
        ),
        "FLOAT8E4M3FN and FLOAT8E5M2 with --scale per-tensor, and FLOAT4E2M1 with --scale nvfp4, alone",
        "comfy-kitchen",
    ),
    MODELS: Style(
        ("onnxruntime", "ONNX"),
        _qdq,
        lambda format: isinstance(format.block, str) or (format.element.family == "int" and format.min_ndim < 2),
        "float8 with --scale per-tensor or per-channel, and integers",
    ),
}


# ---- config.json ----


#: Float8 with one scale that is stored, in compressed-tensors: for the inputs of layers, and for a cache.
STATIC = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor"}


def takes_scales_of_inputs(style: str, format: Format | None) -> bool:
    """Whether layers of such weights may have stored scales for their inputs."""
    is_float8 = format is not None and form(style, format).block in ("tensor", "axis")
    return style == "compressed-tensors" and format is not None and is_float8 and _compressed(format) == _FLOAT8


def tied_heads(kinds: Container[str], names: Iterable[str]) -> list[str]:
    """The last layers of models of these types for which no tensor is named: they share the embedding's weights, which
    have no scales."""
    known = [_HEAD, *(head for head, types in _HEADS.items() if any(kind in kinds for kind in types))]
    ends = tuple(f".{name}" for name in names)
    return [head for head in known if not any(name.endswith(f".{head}.{_WEIGHT}") for name in ends)]


def config(
    style: str, format: Format, kept: Sequence[str], tied: Sequence[str], is_static: bool = False
) -> dict[str, Any]:
    """The quantization_config of a model. `kept` are the modules whose weights are not quantized, `tied` the last
    layers without weights of their own; `is_static`: the scales of inputs are stored.
    """
    if style == "deepseek":
        entry: dict[str, Any] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": list(format.block),
            **({} if format.has_float_scales else {"scale_fmt": "ue8m0"}),
        }
        kept = [*kept, *tied]
        return entry | ({"modules_to_not_convert": kept} if kept else {})
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
    if not format.has_float_scales:
        weights["scale_dtype"] = "torch.float8_e4m3fn" if format.global_scale else "torch.uint8"
    activations = None
    if is_static:
        activations = STATIC
    elif name == _FLOAT8:
        # As in the presets FP8_DYNAMIC and FP8_BLOCK: loaders multiply in float8 and scale activations at run time.
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
        "ignore": [*kept, *(f"re:.*{head}" if head == _HEAD else rf"re:(.*\.)?{re.escape(head)}$" for head in tied)],
    }


def _compressed(format: Format) -> str | None:
    """The name of a format in compressed-tensors; None if it has none."""
    element, block = format.element, format.block
    if format.scale.family == "e8m0" and block == (32,):
        return _MX.get(element.name)
    if element.name == "FLOAT4E2M1" and format.global_scale and block == (16,):
        # Of a global scale it holds the reciprocal, which is rounded.
        return "nvfp4-pack-quantized" if format.steps is None or format.steps.global_scale == "1/u" else None
    if element.name == "FLOAT8E4M3FN" and format.has_float_scales and block in ("tensor", "axis", _SQUARE):
        return _FLOAT8
    is_packed = element.family == "int" and element.bits in (4, 8)
    is_of_rows = block == "axis" or (isinstance(block, tuple) and len(block) == 1)
    return "pack-quantized" if is_packed and is_of_rows else None
