# SPDX-License-Identifier: Apache-2.0
"""The new config.json of a model whose weights gain or lose scales: loaders read in it how the weights are stored."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Sequence
from typing import Any

from gpucast.convert.planning.plan import FilePlan
from gpucast.convert.planning.tensor_plan import Request, TensorPlan
from gpucast.convert.scales import config_json, scale_styles, scaling
from gpucast.convert.scales.config_json import ENTRIES, NAME, document_of
from gpucast.files import FileError

#: Older versions of ModelOpt describe quantized weights here. vLLM reads it if config.json says nothing of them.
_OLDER = "hf_quant_config.json"
#: The keys of a config.json for the type of the weights, and its names of types. The older name comes first.
_DTYPES = ("torch_dtype", "dtype")
_TORCH = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
#: What DeepSeek-V4 calls the type of its experts' codes; vLLM reads it beside the quantization_config.
_EXPERTS = "expert_dtype"
#: The types of tensors that hold codes.
_CODES = ("UINT8", "INT8", "INT32", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1")
#: The part of an expert's tensor name that follows the name of its layer.
_EXPERT = re.compile(r"(?<=\.experts)\.\d+\..*")


def texts(planned: Sequence[FilePlan], request: Request, has_index: bool, path: str) -> dict[str, str]:
    """Names and texts of the config.json files that must change.

    FileError where a loader would have no way to learn of the scales.
    """
    changed: dict[str, str] = {}
    folders = dict.fromkeys(os.path.dirname(file.name) for file in planned)
    for folder in folders:
        in_folder = [file for file in planned if os.path.dirname(file.name) == folder]
        tensors = [tensor for file in in_folder for tensor in file.tensors or ()]
        quantized = [tensor for tensor in tensors if _is_scaled(tensor)]
        config = next(
            (file for file in in_folder if file.tensors is None and os.path.basename(file.name) == NAME), None
        )
        if quantized and config is not None and request.asked_style is None:
            raise FileError(
                f"{path}: has a {NAME}, and its loaders know of scales only what it tells them; say with --style who "
                f"is to load the result: {scale_styles.LOADERS}"
            )
        if quantized and request.style == "comfyui" and has_index:
            raise FileError(f"{path}: --style comfyui is for a model in one file")
        configured = quantized and request.style in scale_styles.CONFIGURED
        dequantized = [file for file in in_folder if file.scales.detected]
        kept = [name for file in in_folder for name in sorted(file.scales.kept)]
        if kept and (configured or (config is not None and dequantized)):
            raise FileError(
                f"{path}: {kept[0]!r} is kept with its scales, and other weights get new ones or lose theirs, which "
                f"{NAME} cannot tell; cast them all, or none"
            )
        unread = [tensor for tensor in tensors if _may_be_codes(tensor) and tensor.name not in kept]
        if quantized and unread and config is not None and (method := _method(config)) is not None:
            raise FileError(
                f"{path}: {NAME} says that weights are quantized ({method}), and {unread[0].name!r} ({unread[0].kind}) "
                f"may hold their codes, in a form that is not known here; scales for others would leave {NAME} wrong"
            )
        if configured:
            if config is None:
                raise FileError(
                    f"{path}: --style {request.style} needs the model's config.json, in which loaders look for the "
                    "scales; convert the folder that has it"
                )
            changed[config.name] = _text(config, _quantization(quantized, tensors, request, path))
        elif config is not None and not quantized:
            text = _of_numbers(config, tensors, bool(dequantized))
            changed |= {} if text is None else {config.name: text}
        elif config is not None and dequantized:
            changed[config.name] = _text(config, None)
    return changed


def is_stale(file: FilePlan, changed: Collection[str]) -> bool:
    """Whether a file describes quantized weights that are gone according to a `changed` config.json of its folder."""
    folder, name = os.path.split(file.name)
    return name == _OLDER and os.path.join(folder, NAME) in changed


def _is_scaled(tensor: TensorPlan) -> bool:
    return tensor.dtype is not None and len(tensor.names) > 1


def _quantization(
    quantized: Sequence[TensorPlan], tensors: Sequence[TensorPlan], request: Request, path: str
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
        if not _is_scaled(tensor) and (_is_matrix(tensor) or _is_of_experts(tensor))
    }
    # If each expert has its own weight tensors, loaders look for the name of the layer.
    expert_layers = {layer for name in kept if (layer := _EXPERT.sub("", name)) != name}
    kept |= expert_layers - {_EXPERT.sub("", tensor.name) for tensor in quantized}
    has_head = any(f".{tensor.name}".endswith(".lm_head.weight") for tensor in tensors)
    return scale_styles.config(request.style, format, sorted(kept), has_head)


def _may_be_codes(tensor: TensorPlan) -> bool:
    return tensor.dtype is None and len(tensor.shape) > 1 and tensor.kind in _CODES


def _method(config: FilePlan) -> str | None:
    """The name of the quantization in a config.json, or None."""
    document = document_of(config.path) or {}
    entries = [document[entry] for entry in ENTRIES if isinstance(document.get(entry), dict)]
    return str(entries[0].get("quant_method", entries[0].get("format", "?"))) if entries else None


def _of_numbers(config: FilePlan, tensors: Sequence[TensorPlan], dequantized: bool) -> str | None:
    """The config.json for weights without scales, or None if it stays unchanged.

    transformers takes a model's type from its config.json, not from its weights.
    """
    document = document_of(config.path)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        kind = tensor.kind if tensor.dtype is None else tensor.dtype.name
        if kind in _TORCH:
            sizes[kind] = sizes.get(kind, 0) + math.prod(tensor.shape)
    is_cast = any(tensor.dtype is not None and tensor.dtype.name in _TORCH for tensor in tensors)
    typed = document
    if document is not None and is_cast:
        typed = _with_dtype(document, _TORCH[max(sizes, key=lambda kind: sizes[kind])])
    if dequantized:
        return _text(config, None, typed)
    return None if typed == document else config_json.dumps(typed) + "\n"


def _with_dtype(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of a config, and of the configs of its parts, that tell the type `name` where they told one."""
    result = dict(document)
    for key, value in document.items():
        if key in _DTYPES and isinstance(value, str) and value.removeprefix("torch.") in _TORCH.values():
            result[key] = name
        elif isinstance(value, dict) and key.endswith("_config") and key not in ENTRIES:
            result[key] = _with_dtype(value, name)
    return result


def _is_matrix(tensor: TensorPlan) -> bool:
    return tensor.name.endswith(".weight") and len(tensor.shape) == 2


def _is_of_experts(tensor: TensorPlan) -> bool:
    """Whether one tensor holds the weights of all experts of a layer."""
    return len(tensor.shape) == 3 and ".experts." in tensor.name


def _text(file: FilePlan, quantization: dict[str, Any] | None, document: dict[str, Any] | None = None) -> str:
    """The document with `quantization` as its quantization_config; None removes the entry."""
    document = document_of(file.path) if document is None else document
    if document is None:
        raise FileError(f"{file.path}: is no JSON object, and its quantization_config must change")
    kept = {key: value for key, value in document.items() if key not in (*ENTRIES, _EXPERTS)}
    if quantization is not None:
        if _EXPERTS in document and quantization["quant_method"] == "fp8":
            # Without it vLLM takes the experts of DeepSeek-V4 for pairs of FLOAT4E2M1.
            kept[_EXPERTS] = "fp8"
        kept |= {ENTRIES[0]: quantization}
    return config_json.dumps(kept) + "\n"
