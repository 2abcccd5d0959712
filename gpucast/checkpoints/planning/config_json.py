# SPDX-License-Identifier: Apache-2.0
"""The new config.json of a model whose weights gain or lose scales: loaders read in it how the weights are stored."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from typing import Any

from gpucast.checkpoints.planning.plan import FilePlan
from gpucast.checkpoints.planning.tensors import Request, TensorPlan
from gpucast.checkpoints.scales import quantize as scaling
from gpucast.checkpoints.scales import styles as scale_styles
from gpucast.checkpoints.scales.config_json import ENTRIES, NAME, document_of
from gpucast.files import FileError

#: Older versions of ModelOpt describe quantized weights here. vLLM reads it if config.json says nothing of them.
_OLDER = "hf_quant_config.json"
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
        if configured:
            if config is None:
                raise FileError(
                    f"{path}: --style {request.style} needs the model's config.json, where loaders read of the scales; "
                    "convert the folder that has it"
                )
            changed[config.name] = _text(config, _quantization(quantized, tensors, request, path))
            continue
        if config is not None and dequantized:
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
    kept = {
        tensor.name.rpartition(".")[0]
        for tensor in tensors
        if not _is_scaled(tensor) and (_is_matrix(tensor) or _is_of_experts(tensor))
    }
    # If each expert has its own weight tensors, loaders look for the name of the layer.
    expert_layers = {layer for name in kept if (layer := _EXPERT.sub("", name)) != name}
    kept |= expert_layers - {_EXPERT.sub("", tensor.name) for tensor in quantized}
    has_head = any(f".{tensor.name}".endswith(".lm_head.weight") for tensor in tensors)
    return scale_styles.config(request.style, scaling.formats(dtype)[request.scale], sorted(kept), has_head)


def _is_matrix(tensor: TensorPlan) -> bool:
    return tensor.name.endswith(".weight") and len(tensor.shape) == 2


def _is_of_experts(tensor: TensorPlan) -> bool:
    """Whether one tensor holds the weights of all experts of a layer."""
    return len(tensor.shape) == 3 and ".experts." in tensor.name


def _text(file: FilePlan, quantization: dict[str, Any] | None) -> str:
    """The document with `quantization` as its quantization_config; None removes the entry."""
    document = document_of(file.path)
    if document is None:
        raise FileError(f"{file.path}: is no JSON object, and its quantization_config must change")
    kept = {key: value for key, value in document.items() if key not in ENTRIES}
    return json.dumps(kept if quantization is None else {**kept, ENTRIES[0]: quantization}, indent=2) + "\n"
