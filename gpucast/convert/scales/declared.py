# SPDX-License-Identifier: Apache-2.0
"""What the files beside weights say of their quantization, held against the tensors: the two must agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from gpucast.convert.scales import config_json
from gpucast.convert.scales.config_json import Section
from gpucast.convert.scales.scale_styles import STATIC
from gpucast.convert.scales.stored import Stored
from gpucast.convert.streaming.pieces import lengths

#: Names of quantizers that are not read, for people. Others are named as they name themselves.
_UNREAD = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "mlx": "MLX (affine)", "gguf": "GGUF"}
_COMMON = ("quant_method", "modules_to_not_convert", "ignored_layers", "dequantize")
#: The keys that are understood, by method; a "*" stands for values that say nothing of stored weights.
_KEYS: dict[str, tuple[str, ...]] = {
    "fp8": (
        *("fmt", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype", "modules_to_convert"),
        *("kv_cache_scheme", "is_checkpoint_fp8_serialized", "linear_class", "version"),
    ),
    "fbgemm_fp8": ("activation_scale_ub",),
    "mxfp4": (),
    "compressed-tensors": (
        *("format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio"),
        *("sparsity_config", "transform_config", "version", "run_compressed"),
    ),
    "modelopt": (
        *("quant_algo", "kv_cache_quant_algo", "kv_cache_scheme", "group_size", "exclude_modules", "ignore"),
        *("config_groups", "producer", "quantized_layers", "has_zero_point", "pre_quant_scale"),
    ),
}
#: Entries that must be one of these; () for nothing at all. None and what is empty always is.
_VALUES: dict[str, tuple[Any, ...]] = {
    "fmt": ("e4m3", "float8_e4m3fn", "e5m2"),
    "activation_scheme": ("dynamic", "static"),
    "scale_fmt": ("ue8m0", "float"),
    "expert_dtype": ("fp4", "fp8"),
    "transform_config": (),
    "sparsity_config": ({"format": "dense"},),
    "pre_quant_scale": (False,),
    "has_zero_point": (False,),
    "quantization_status": ("compressed", "frozen"),
}
#: The packings and elements of compressed-tensors' formats; None for any.
_FORMATS: dict[str, tuple[str, str | None]] = {
    "pack-quantized": ("words", None),
    "int-quantized": ("plain", "INT8"),
    "float-quantized": ("plain", "FLOAT8E4M3FN"),
    "naive-quantized": ("plain", None),
    "mxfp8-quantized": ("plain", "FLOAT8E4M3FN"),
    "mxfp6-pack-quantized": ("bytes", "FLOAT6E2M3"),
    "mxfp4-pack-quantized": ("bytes", "FLOAT4E2M1"),
    "nvfp4-pack-quantized": ("bytes", "FLOAT4E2M1"),
    "mixed-precision": ("", None),
}
_ELEMENTS = {("float", 8): "FLOAT8E4M3FN", ("float", 6): "FLOAT6E2M3", ("float", 4): "FLOAT4E2M1"}
_WEIGHTS = (
    *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder"),
    *("scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
)
_GROUP = ("targets", "weights", "input_activations", "output_activations", "format")
_SCALES = {
    "torch.uint8": "FLOAT8E8M0",
    "torch.float8_e8m0fnu": "FLOAT8E8M0",
    "torch.float8_e4m3fn": "FLOAT8E4M3FN",
    **dict.fromkeys(("torch.float32", "torch.bfloat16", "torch.float16"), "FLOAT"),
}
#: Element and lengths of the blocks of ModelOpt's algorithms; 0 stands for all of a dimension.
_ALGORITHMS = {
    "FP8": ("FLOAT8E4M3FN", (0, 0)),
    "FP8_PER_CHANNEL_PER_TOKEN": ("FLOAT8E4M3FN", (1, 0)),
    "NVFP4": ("FLOAT4E2M1", (1, 16)),
    "W4A16_NVFP4": ("FLOAT4E2M1", (1, 16)),
    "MXFP8": ("FLOAT8E4M3FN", (1, 32)),
    "MIXED_PRECISION": (None, None),
}


@dataclass(frozen=True)
class _Expected:
    """How weights are to be stored; None where nothing is said."""

    element: str | None = None
    lengths: tuple[int, int] | None = None
    zero_points: bool | None = None
    packing: str | None = None
    scale: str | None = None

    def problem(self, stored: Stored) -> str:
        format, shape = stored.format, stored.shape
        found: list[tuple[str, Any, Any]] = [
            ("codes of", self.element, format.element.name),
            ("zero points", self.zero_points, format.zero_points),
            ("packing", self.packing, stored.packing),
            ("scales of", self.scale, format.scale.name),
        ]
        if self.lengths is not None and len(shape) == 2:
            wanted = tuple(min(length or n, n) for length, n in zip(self.lengths, shape, strict=True))
            held = tuple(min(length, n) for length, n in zip(lengths(format, shape), shape, strict=True))
            found.append(("blocks of", "x".join(map(str, wanted)), "x".join(map(str, held))))
        return next(
            (f"{what} {wanted}; its tensors {held}" for what, wanted, held in found if wanted not in (None, held)), ""
        )


class Declared:
    """The sections of one folder."""

    def __init__(self, folder: str) -> None:
        self.sections: list[Section] = config_json.sections(folder)

    @cached_property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns of the blocks of float8 weights."""
        return config_json.block_size(self.sections)

    def unknown(self) -> str:
        """Why a section is not understood; "" if all are."""
        return next((f"{one.where}: {why}" for one in self.sections if (why := unknown(one))), "")

    def problem(self, base: str, stored: Stored) -> str:
        """Why what is said of a weight contradicts its tensors; "" if nothing does."""
        module = base.removesuffix(".weight")
        for section in self.sections:
            if unknown(section):
                # `unknown` tells.
                continue
            try:
                if (name := _match(_ignored(section.entry), module, within=True)) is not None:
                    return f"{section.where} says that {name!r} is not quantized, and {base!r} has scales"
                expected = _expected(section.entry, module, stored)
            except (AttributeError, TypeError, ValueError) as error:
                return f"{section.where}: {error}"
            if why := expected.problem(stored):
                return f"{section.where} says that {base!r} has {why}"
        return ""

    @property
    def cache(self) -> dict[str, Any] | None:
        """How the cache of keys and values is scaled, as compressed-tensors says it."""
        for section in self.sections:
            if isinstance(scheme := section.entry.get("kv_cache_scheme"), dict) and scheme:
                return scheme
            if section.entry.get("kv_cache_quant_algo") == "FP8":
                return STATIC
        return None


def unknown(section: Section) -> str:
    """Why a section is not understood; "" if it is."""
    try:
        return section.problem or _not_understood(section.entry)
    except (AttributeError, TypeError):
        # Lists and objects where names or numbers belong.
        return "has values of other kinds than are known here"


def _not_understood(entry: dict[str, Any]) -> str:
    method = _method(entry)
    if method not in _KEYS:
        return f"weights are quantized by {_UNREAD.get(method, repr(method))}, which is not read here"
    for key, value in entry.items():
        if key not in (*_COMMON, *_KEYS[method]):
            return f"{key!r} is not known here"
        if key in _VALUES and value not in (None, {}, [], *_VALUES[key]):
            shown = repr(value)
            return f"{key} is {shown if len(shown) < 80 else shown[:80] + '...'}, which is not known here"
    if method == "modelopt":
        own = list((entry.get("quantized_layers") or {}).values())
        for algorithm in [entry.get("quant_algo"), *(one.get("quant_algo") for one in own)]:
            if algorithm not in _ALGORITHMS:
                return f"quant_algo {algorithm!r} is not read here"
    return _unknown_groups(entry) if method in ("compressed-tensors", "modelopt") else ""


def _unknown_groups(entry: dict[str, Any]) -> str:
    groups = entry.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        return "config_groups is no JSON object of groups"
    for name, group in [("", {"format": entry.get("format")}), *groups.items()]:
        weights = group.get("weights") or {}
        if not isinstance(weights, dict):
            return f"{name}: weights is no JSON object"
        for key in group:
            if key not in _GROUP:
                return f"{name}: {key!r} is not known here"
        for key in weights:
            if key not in _WEIGHTS:
                return f"{name}: weights: {key!r} is not known here"
        if (format := group.get("format")) is not None and format not in _FORMATS:
            return f"format {format!r} is not read here"
        if weights.get("dynamic") or weights.get("actorder") not in (None, False, "weight", "static"):
            return f"{name}: weights: dynamic or actorder {weights.get('actorder')!r} is not read here"
        targets = group.get("targets", [])
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
            return f"{name}: targets is no list of names"
    return ""


def _method(entry: dict[str, Any]) -> str:
    method = str(entry.get("quant_method", ""))
    if not method and "bits" in entry and "group_size" in entry:
        return "mlx"
    if not method and "quant_algo" in entry:
        return "modelopt"
    return {"modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt", "compressed_tensors": "compressed-tensors"}.get(
        method, method
    )


def _ignored(entry: dict[str, Any]) -> list[str]:
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    return [str(name) for key in keys if isinstance(entry.get(key), list) for name in entry[key]]


def _match(patterns: Sequence[str], module: str, *, within: bool = False) -> str | None:
    """The first pattern that names a module: itself, a shell wildcard, or a regular expression after "re:"; `within`:
    or a module around it."""

    def names(one: str) -> bool:
        if one.startswith("re:"):
            return re.match(one[3:], module) is not None
        return fnmatchcase(module, one) or (within and module.startswith(f"{one}."))

    try:
        return next(filter(names, patterns), None)
    except re.error as error:
        raise ValueError(f"a pattern is no regular expression: {error}") from None


def _expected(entry: dict[str, Any], module: str, stored: Stored) -> _Expected:
    method = _method(entry)
    if method == "fp8":
        if stored.format.element.name == "FLOAT4E2M1":
            return _Expected(scale="FLOAT8E8M0")
        fmt = {"e4m3": "FLOAT8E4M3FN", "float8_e4m3fn": "FLOAT8E4M3FN", "e5m2": "FLOAT8E5M2"}
        return _Expected(fmt.get(entry.get("fmt", ""), None), zero_points=False)
    if method == "fbgemm_fp8":
        return _Expected("FLOAT8E4M3FN", zero_points=False, scale="FLOAT")
    if method == "mxfp4":
        return _Expected("FLOAT4E2M1", (1, 32), False, "bytes", "FLOAT8E8M0")
    if method == "modelopt":
        own = (entry.get("quantized_layers") or {}).get(module) or entry
        element, lengths = _ALGORITHMS[own["quant_algo"]]
        size = own.get("group_size")
        if lengths is not None and lengths[1] and size is not None:
            lengths = lengths[0], int(size)
        return _Expected(element, lengths, False)
    return _of_group(entry, module)


def _of_group(entry: dict[str, Any], module: str) -> _Expected:
    groups = list((entry.get("config_groups") or {}).values())
    group = next((one for one in groups if _match(one.get("targets") or (), module) is not None), None)
    # Others name types of layers, which the names of tensors do not tell.
    group = group or next((one for one in groups if set(one.get("targets") or ()) & {"Linear", "Embedding"}), None)
    if group is None:
        raise ValueError(f"no group of config_groups is for {module!r}, which has scales")
    weights = group.get("weights") or {}
    kind, bits = str(weights.get("type", "int")).lower(), weights.get("num_bits", 8)
    symmetric, strategy = weights.get("symmetric", True), weights.get("strategy")
    element = _ELEMENTS.get((kind, bits)) if kind == "float" else f"{'INT' if symmetric else 'UINT'}{bits}"
    packing, only = _FORMATS[group.get("format") or entry.get("format") or "mixed-precision"]
    if packing == "plain" and kind == "int":
        element = f"INT{bits}"
    size = weights.get("group_size")
    strategy = strategy or ("tensor" if size is None else "group" if size > 0 else "channel")
    lengths: tuple[int, int] | None = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy)
    if strategy in ("group", "tensor_group") and type(size) is int and size > 0:
        lengths = 1, size
    elif strategy == "block":
        sizes = config_json.block_structure(weights)
        lengths = None if sizes is None else (sizes[0], sizes[1])
    if element is None or lengths is None or (only is not None and only != element):
        raise ValueError(f"weights of {bits!r} bits of {kind!r}, {strategy!r}, are not read here")
    scale = _SCALES.get(str(weights["scale_dtype"]), "?") if weights.get("scale_dtype") else None
    return _Expected(element, lengths, not symmetric, packing or None, scale)
