# SPDX-License-Identifier: Apache-2.0
"""The new config.json of a model whose weights gain or lose scales: loaders read in it how the weights are stored."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any

from gpucast.convert.planning.plan import FilePlan
from gpucast.convert.planning.tensor_plan import TensorPlan
from gpucast.convert.scales import config_json, scale_styles, scaling
from gpucast.convert.scales.companions import INPUT
from gpucast.convert.scales.config_json import ENTRIES, NAME, OTHERS, document_of
from gpucast.convert.scales.declared import Declared
from gpucast.convert.scales.request import Request
from gpucast.convert.scales.scale_styles import STYLES
from gpucast.files import FileError

#: The keys of a config.json for the type of the weights, and its names of types. The older name comes first.
_DTYPES = ("torch_dtype", "dtype")
_TORCH = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
#: What DeepSeek-V4 calls the type of its experts' codes; vLLM reads it beside the quantization_config.
_EXPERTS = "expert_dtype"
#: Models of transformers with layers of the class Conv1D, whose weights are [inputs, outputs]. Its quantizers know the
#: class Linear alone: it fills such layers with random numbers, and says so among other warnings.
_CONV1D = ("clvp", "decision_transformer", "gpt2", "imagegpt", "openai-gpt")
#: The part of an expert's tensor name that follows the name of its layer.
_EXPERT = re.compile(r"(?<=\.experts)\.\d+\..*")


def texts(
    planned: Sequence[FilePlan], request: Request, has_index: bool, path: str
) -> tuple[dict[str, str], frozenset[str]]:
    """Names and texts of the config.json files that must change, and the names of files that are no longer true.

    FileError where a loader would have no way to learn of the scales.
    """
    changed: dict[str, str] = {}
    stale: set[str] = set()
    folders = dict.fromkeys(os.path.dirname(file.name) for file in planned)
    for folder in folders:
        in_folder = [file for file in planned if os.path.dirname(file.name) == folder]
        tensors = [tensor for file in in_folder for tensor in file.tensors or ()]
        quantized = [tensor for tensor in tensors if _is_scaled(tensor)]
        config = next(
            (file for file in in_folder if file.tensors is None and os.path.basename(file.name) == NAME), None
        )
        if quantized and config is not None and request.asked_style is None:
            readers = ((name, one) for name, one in STYLES.items() if name != scale_styles.MODELS)
            known = ", ".join(f"{name} ({', '.join(one.loaders)})" for name, one in readers)
            raise FileError(
                f"{path}: has a {NAME}, and its loaders know of scales only what it tells them; say with --style who "
                f"is to load the result: {known}"
            )
        if quantized and request.style == "comfyui" and has_index:
            raise FileError(f"{path}: --style comfyui is for a model in one file")
        configured = quantized and STYLES[request.style].is_configured
        dequantized = [file for file in in_folder if file.scales.detected]
        kept = [name for file in in_folder for name in sorted(file.scales.kept)]
        if kept and (configured or (config is not None and dequantized)):
            raise FileError(
                f"{path}: {kept[0]!r} is kept with its scales, and other weights get new ones or lose theirs, which "
                f"{NAME} cannot tell; cast them all, or none: --rule '{kept[0]}=T' casts it, too, to a type T"
            )
        # What nothing bears out any more goes, whoever said it: loaders would take weights for codes.
        is_stale = bool(dequantized) or (not kept and any(tensor.dtype is not None for tensor in tensors))
        if is_stale or configured:
            stale |= {file.name for file in in_folder if os.path.basename(file.name) in OTHERS}
        if configured:
            if config is None:
                raise FileError(
                    f"{path}: --style {request.style} needs the model's config.json, in which loaders look for the "
                    "scales; convert the folder that has it"
                )
            kinds = set(_kinds(document_of(config.path)))
            if (kind := next((kind for kind in _CONV1D if kind in kinds), None)) is not None:
                raise FileError(
                    f"{config.path}: model_type is {kind!r}, whose layers are Conv1D; loaders of style {request.style} "
                    f"quantize Linear layers alone, and would take random numbers; expected --style "
                    f"{scale_styles.DEFAULT}, or --to BFLOAT16 or FLOAT16"
                )
            carried = {name for file in in_folder for name in file.scales.carried}
            section = _quantization(quantized, tensors, request, path, carried, kinds)
            cache = Declared(os.path.dirname(config.path)).cache
            if cache is not None and not all(name.endswith(INPUT) for name in carried):
                section["kv_cache_scheme"] = cache
            changed[config.name] = _text(config, section)
        elif config is not None:
            if dequantized and document_of(config.path) is None:
                raise FileError(f"{config.path}: is no JSON object, and what it says of quantization must change")
            text = _of_numbers(config, tensors, is_stale, bool(quantized))
            changed |= {} if text is None else {config.name: text}
    return changed, frozenset(stale)


def _kinds(document: Any) -> Iterator[str]:
    """The types of a model and of its parts."""
    if isinstance(document, dict):
        if isinstance(kind := document.get("model_type"), str):
            yield kind
        for part in document.values():
            yield from _kinds(part)


def _is_scaled(tensor: TensorPlan) -> bool:
    return tensor.dtype is not None and len(tensor.names) > 1


def _quantization(
    quantized: Sequence[TensorPlan],
    tensors: Sequence[TensorPlan],
    request: Request,
    path: str,
    carried: Set[str],
    kinds: Set[str],
) -> dict[str, Any]:
    dtypes = {tensor.dtype for tensor in quantized if tensor.dtype is not None}
    if len(dtypes) > 1:
        names = ", ".join(sorted(dtype.name for dtype in dtypes))
        raise FileError(f"{path}: --style {request.style} holds weights of one type; expected one of {names}")
    (dtype,) = dtypes
    assert request.scale is not None
    format = scaling.format_of(request.scale, dtype)
    assert format is not None
    format = scale_styles.form(request.style, format)
    kept = {
        tensor.name.rpartition(".")[0]
        for tensor in tensors
        if not _is_scaled(tensor)
        and ((tensor.name.endswith(".weight") and len(tensor.shape) == 2) or _is_of_experts(tensor))
    }
    # If each expert has its own weight tensors, loaders look for the name of the layer.
    expert_layers = {layer for name in kept if (layer := _EXPERT.sub("", name)) != name}
    kept |= expert_layers - {_EXPERT.sub("", tensor.name) for tensor in quantized}
    tied = scale_styles.tied_heads(kinds, [tensor.name for tensor in tensors])
    is_static = scale_styles.takes_scales_of_inputs(request.style, format)
    is_static &= all(tensor.name.removesuffix(".weight") + INPUT in carried for tensor in quantized)
    return scale_styles.config(request.style, format, sorted(kept), tied, is_static)


def _of_numbers(config: FilePlan, tensors: Sequence[TensorPlan], is_stale: bool, is_quantized: bool) -> str | None:
    """The config.json for weights of which it says nothing, or None if it stays unchanged; `is_stale`: without what it
    says of quantization.

    transformers takes a model's type from its config.json, not from its weights.
    """
    document = document_of(config.path)
    if document is None:
        return None
    sizes: dict[str, int] = {}
    for tensor in tensors:
        kind = tensor.kind if tensor.dtype is None else tensor.dtype.name
        if kind in _TORCH:
            sizes[kind] = sizes.get(kind, 0) + math.prod(tensor.shape)
    typed = document
    if not is_quantized and any(tensor.dtype is not None and tensor.dtype.name in _TORCH for tensor in tensors):
        typed = _with_dtype(document, _TORCH[max(sizes, key=lambda kind: sizes[kind])])
    if is_stale:
        typed = config_json.without_sections(typed, (_EXPERTS,))
    return None if typed == document else config_json.dumps(typed) + "\n"


def _with_dtype(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of a config, and of the configs of its parts, with the type `name` where they had one."""
    result = dict(document)
    for key, value in document.items():
        if key in _DTYPES and isinstance(value, str) and value.removeprefix("torch.") in _TORCH.values():
            result[key] = name
        elif isinstance(value, dict) and key.endswith("_config") and key not in ENTRIES:
            result[key] = _with_dtype(value, name)
    return result


def _is_of_experts(tensor: TensorPlan) -> bool:
    """Whether one tensor holds the weights of all experts of a layer."""
    return len(tensor.shape) == 3 and ".experts." in tensor.name


def _text(file: FilePlan, quantization: dict[str, Any]) -> str:
    """The document with `quantization` as its quantization_config, and no other one."""
    document = document_of(file.path)
    if document is None:
        raise FileError(f"{file.path}: is no JSON object, and its quantization_config must change")
    kept = config_json.without_sections(document, (_EXPERTS,))
    if _EXPERTS in document and quantization["quant_method"] == "fp8":
        # Without it vLLM takes the experts of DeepSeek-V4 for pairs of FLOAT4E2M1.
        kept[_EXPERTS] = "fp8"
    return config_json.dumps(kept | {ENTRIES[0]: quantization}) + "\n"
