# SPDX-License-Identifier: Apache-2.0
"""Small quantized checkpoints of every kind, by the formulas of their formats, and what can be wrong with them: one
change at a time. Nothing here is gpucast's: NumPy, ml_dtypes, and the formulas."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Tensors = dict[str, Any]
E4M3, E8M0, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
BFLOAT16 = ml_dtypes.bfloat16
L, M = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"


@dataclass
class Checkpoint:
    """Tensors, what config.json says, and the numbers of the weights."""

    tensors: Tensors
    config: dict[str, Any]
    numbers: dict[str, Any]
    #: What was changed.
    change: str = ""
    #: The section of the config, and where it stands; None for none.
    section: dict[str, Any] | None = field(default=None)

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        folder.mkdir(parents=True)
        # The package's own types: bytes where NumPy has none.
        _save(self.tensors, folder / "model.safetensors", save_file)
        (folder / "config.json").write_text(json.dumps(self.config))


_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}
_NAMES |= {"int8": "I8", "uint8": "U8", "int32": "I32", "int64": "I64", "bool": "BOOL", "float64": "F64"}


def _save(tensors: Tensors, path: Path, save_file: Any) -> None:
    header, data = {}, b""
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {
            "dtype": _NAMES[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _x(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-2, 3, shape))).astype(np.float32)


def _wide(scales: Any, *lengths: int) -> Any:
    wide = np.asarray(scales).astype(np.float64)
    for axis, length in zip(range(-len(lengths), 0), lengths, strict=True):
        wide = np.repeat(wide, length, axis)
    return wide


def _number(codes: Any, scales: Any) -> Any:
    return (codes.astype(np.float64) * scales).astype(np.float32)


def _powers(*shape: int) -> Any:
    return np.random.default_rng(7).integers(118, 132, shape).astype(np.uint8)


def _four(*shape: int) -> tuple[Any, Any]:
    """Codes of FLOAT4E2M1, and pairs of them, the first in the low half."""
    raw = np.random.default_rng(3).integers(0, 16, shape).astype(np.uint8)
    return raw.view(E2M1), raw[..., 0::2] | raw[..., 1::2] << 4


def _words(offsets: Any, bits: int) -> Any:
    """Codes in INT32 along the last dimension, from the low bits on."""
    per = 32 // bits
    grouped = offsets.astype(np.uint32).reshape(*offsets.shape[:-1], -1, per)
    return np.sum(grouped << (np.arange(per, dtype=np.uint32) * bits), -1, dtype=np.uint32).view(np.int32)


def _group(format: str, **weights: Any) -> dict[str, Any]:
    weights = {"dynamic": False, "symmetric": True, "observer": "minmax", **weights}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": format}}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip


# ---- kinds: tensors of two layers, the section of config.json, numbers ----


def fp8_blocks() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name, seed in ((L, 1), (M, 2)):
        codes, scales = _x(256, 128, seed=seed).astype(E4M3), np.abs(_x(2, 1, seed=seed))
        held |= {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
        numbers[f"{name}.weight"] = _number(codes, _wide(scales, 128, 128))
    said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return held, said | {"modules_to_not_convert": ["lm_head"]}, numbers


def deepseek_v4() -> tuple[Tensors, Any, Tensors]:
    dense, scales, (codes, pairs) = _x(256, 128).astype(E4M3), _powers(2, 1), _four(32, 64)
    groups = _powers(32, 2)
    held = {f"{L}.weight": dense, f"{L}.scale": scales.view(E8M0), f"{M}.weight": pairs.view(np.int8)}
    numbers = {
        f"{L}.weight": _number(dense, _wide(scales.view(E8M0), 128, 128)),
        f"{M}.weight": _number(codes, _wide(groups.view(E8M0), 32)[:, :64]),
    }
    said = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    return held | {f"{M}.scale": groups.view(E8M0)}, said, numbers


def gpt_oss() -> tuple[Tensors, Any, Tensors]:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    (codes, pairs), scales = _four(2, 6, 64), _powers(2, 6, 2)
    held = {
        f"{name}_blocks": pairs.reshape(2, 6, 2, 16),
        f"{name}_scales": scales,
        f"{name}_bias": _x(2, 6).astype(BFLOAT16),
    }
    numbers = {name: _number(codes, _wide(scales.view(E8M0), 32)).transpose(0, 2, 1)}
    return held, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, numbers


def pack_quantized(bits: int, symmetric: bool) -> tuple[Tensors, Any, Tensors]:
    held, numbers, rng = {}, {}, np.random.default_rng(5)
    for name in (L, M):
        codes = rng.integers(0, 1 << bits, (16, 64))
        scales, zero = np.abs(_x(16, 2)) + np.float32(0.01), np.full((16, 2), 1 << bits - 1)
        held |= {f"{name}.weight_packed": _words(codes, bits), f"{name}.weight_scale": scales}
        held[f"{name}.weight_shape"] = np.array([16, 64])
        if not symmetric:
            zero = rng.integers(0, 1 << bits, (16, 2))
            held[f"{name}.weight_zero_point"] = np.ascontiguousarray(_words(np.ascontiguousarray(zero.T), bits).T)
        numbers[f"{name}.weight"] = _number(codes - np.repeat(zero, 32, 1), _wide(scales, 32))
    said = _group("pack-quantized", num_bits=bits, type="int", strategy="group", group_size=32, symmetric=symmetric)
    return held, said, numbers


def int_quantized() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name in (L, M):
        codes = np.random.default_rng(1).integers(-128, 128, (16, 32)).astype(np.int8)
        scales, zero = np.abs(_x(16, 1)).astype(BFLOAT16), np.arange(16, dtype=np.int8)[:, None]
        held |= {f"{name}.weight": codes, f"{name}.weight_scale": scales, f"{name}.weight_zero_point": zero}
        numbers[f"{name}.weight"] = _number(codes.astype(int) - zero, scales.astype(np.float64))
    return held, _group("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False), numbers


def float_quantized() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {"model.layers.0.self_attn.k_scale": _x(1), "model.layers.0.self_attn.v_scale": _x(1)}, {}
    for name in (L, M):
        codes, scale = _x(16, 32).astype(E4M3), np.array([0.25], np.float32)
        held |= {f"{name}.weight": codes, f"{name}.weight_scale": scale, f"{name}.input_scale": _x(1)}
        numbers[f"{name}.weight"] = _number(codes, 0.25)
    return held, _group("float-quantized", num_bits=8, type="float", strategy="tensor"), numbers


def nvfp4() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name in (L, M):
        (codes, pairs), scales, top = _four(16, 64), np.abs(_x(16, 4)).astype(E4M3), np.array([32], np.float32)
        held |= {f"{name}.weight_packed": pairs, f"{name}.weight_scale": scales, f"{name}.weight_global_scale": top}
        held[f"{name}.input_global_scale"] = _x(1)
        numbers[f"{name}.weight"] = _number(codes, _wide(scales, 16) / 32)
    said = _group("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
    return held, said, numbers


def mx(bits: int) -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name in (L, M):
        (four, pairs), scales, eight = _four(16, 64), _powers(16, 2), _x(16, 64).astype(E4M3)
        held |= {f"{name}.weight_packed": pairs} if bits == 4 else {f"{name}.weight": eight}
        held[f"{name}.weight_scale"] = scales
        numbers[f"{name}.weight"] = _number(four if bits == 4 else eight, _wide(scales.view(E8M0), 32))
    format = {4: "mxfp4-pack-quantized", 8: "mxfp8-quantized"}[bits]
    said = _group(format, num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype="torch.uint8")
    return held, said, numbers


def modelopt() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name in (L, M):
        (codes, pairs), scales, top = _four(16, 64), np.abs(_x(16, 4)).astype(E4M3), np.float32(0.25)
        held |= {f"{name}.weight": pairs, f"{name}.weight_scale": scales, f"{name}.weight_scale_2": top}
        held[f"{name}.input_scale"] = np.float32(2)
        numbers[f"{name}.weight"] = _number(codes, _wide(scales, 16) / 4)
    said = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }
    return held, said | {"producer": {"name": "modelopt"}}, numbers


def llama_4() -> tuple[Tensors, Any, Tensors]:
    name = "model.layers.0.feed_forward.experts.gate_up_proj"
    codes, scales = _x(2, 12, 8).astype(E4M3), np.abs(_x(2, 1, 8))
    rows = np.abs(_x(16, 1))
    held = {name: codes, f"{name}_scale": scales, f"{M}.weight": _x(16, 32).astype(E4M3), f"{M}.weight_scale": rows}
    # Of down_proj, too, each column has a scale; they are stored as rows.
    down, of_down = name.replace("gate_up", "down"), np.abs(_x(2, 12, 1, seed=9))
    held |= {down: _x(2, 4, 12, seed=8).astype(E4M3), f"{down}_scale": of_down}
    numbers = {
        name: _number(codes, scales.astype(np.float64)),
        down: _number(held[down], of_down.astype(np.float64).transpose(0, 2, 1)),
        f"{M}.weight": _number(held[f"{M}.weight"], rows.astype(np.float64)),
    }
    return (
        held,
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        numbers,
    )


def comfyui() -> tuple[Tensors, Any, Tensors]:
    held, numbers = {}, {}
    for name in (L, M):
        codes, scale = _x(16, 32).astype(E4M3), np.float32(0.5)
        said = np.frombuffer(b'{"format": "float8_e4m3fn"}', np.uint8)
        held |= {f"{name}.weight": codes, f"{name}.weight_scale": scale, f"{name}.comfy_quant": said}
        numbers[f"{name}.weight"] = _number(codes, 0.5)
    return held, None, numbers


KINDS: dict[str, Any] = {
    "fp8 blocks": fp8_blocks,
    "DeepSeek-V4": deepseek_v4,
    "gpt-oss": gpt_oss,
    "INT4": lambda: pack_quantized(4, True),
    "UINT4": lambda: pack_quantized(4, False),
    "INT8": int_quantized,
    "float8": float_quantized,
    "NVFP4": nvfp4,
    "MXFP4": lambda: mx(4),
    "MXFP8": lambda: mx(8),
    "ModelOpt": modelopt,
    "Llama 4": llama_4,
    "ComfyUI": comfyui,
}


def make(kind: str) -> Checkpoint:
    tensors, section, numbers = KINDS[kind]()
    plain = {"model.norm.weight": _x(32).astype(BFLOAT16), "lm_head.weight": _x(8, 32).astype(BFLOAT16)}
    config = {"model_type": "llama", "torch_dtype": "bfloat16"} | ({"quantization_config": section} if section else {})
    tensors = {name: np.asarray(x) for name, x in (tensors | plain).items()}
    numbers = numbers | {name: x.astype(np.float32) for name, x in plain.items()}
    return Checkpoint(tensors, config, numbers, section=section)


# ---- one change at a time ----

_LAST = (
    *("foo", "weight_scale_3", "scale", "scales", "qzeros", "g_idx", "perm", "rotation", "weight_offset", "deq_scale"),
    *("quant_bias", "bias_correction", "smooth", "input_scale", "k_scale", "lora_A.weight", "R4_input.weight", "zeros"),
    *("weight_zero_point", "weight_g_idx", "absmax", "hadamard", "weight_scale_inv", "weight_global_scale", "scale_2"),
    *("pre_quant_scale", "weight_scale_2", "shift", "codebook", "weight2", "svd_up", "mask", "weight_shape", "su"),
)
_TYPES = (np.float32, BFLOAT16, np.int8, np.uint8, np.int32, np.int64, E4M3, np.bool_, E8M0)


def mutant(kind: str, seed: int) -> Checkpoint:
    rng, made = random.Random(f"{kind}{seed}"), make(kind)
    companions = [name for name in made.tensors if name not in made.numbers and not name.endswith("_bias")]
    how = ["unknown", "renamed", "removed", "config"][seed % 4]
    if how == "config" and made.section is None:
        how = "unknown"
    if how == "unknown":
        place = rng.choice([L, M, "model.layers.0", "model.layers.0.self_attn", "", *companions])
        name = f"{place}.{rng.choice(_LAST)}".removeprefix(".")
        if name not in made.tensors:
            shape = rng.choice([(), (1,), (16,), (16, 1), (32,), (2, 1), (16, 2), (16, 16)])
            made.tensors[name] = np.ones(shape, np.float32).astype(rng.choice(_TYPES))
        made.change = f"unknown {name}"
    elif how == "config":
        made.change = _changed(made.config, rng)
        _of_other_blocks(made)
    else:
        name = rng.choice(companions)
        x = made.tensors.pop(name)
        made.change = f"{how} {name}"
        if how == "renamed":
            stem, _, last = name.rpartition(".")
            other = rng.choice([
                f"{last}_", f"{last}s", f"_{last}", last.upper(), last.replace("_", ""), last.replace("weight_", ""),
                last[:-1], f"{last}.x", last.replace("scale", "scales"), rng.choice(_LAST), f"my_{last}", f"{last}_old",
            ])  # fmt: skip
            made.tensors.setdefault(f"{stem}.{other}", x)
            made.change += f" -> {other}"
    return made


def _of_other_blocks(made: Checkpoint) -> None:
    """Blocks of other lengths are others, where the scales are as many: then the numbers are those."""
    section = made.config.get("quantization_config") or made.config["text_config"]["quantization_config"]
    lengths = section.get("weight_block_size")
    if not (isinstance(lengths, list) and len(lengths) == 2 and all(isinstance(n, int) and n > 0 for n in lengths)):
        return
    for name, x in list(made.tensors.items()):
        scales = made.tensors.get(f"{name}_scale_inv", made.tensors.get(f"{name.removesuffix('weight')}scale"))
        if scales is not None and scales.shape == tuple(-(-n // m) for n, m in zip(x.shape, lengths, strict=True)):
            wide = _wide(scales, *lengths)[: x.shape[0], : x.shape[1]]
            made.numbers[name] = _number(x, wide)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, held in value.items():
            yield from _leaves(held, (*path, key))
    elif isinstance(value, list):
        for index, held in enumerate(value):
            yield from _leaves(held, (*path, index))


def _changed(config: dict[str, Any], rng: random.Random) -> str:
    """Change one entry of the section."""
    section = config["quantization_config"] = copy.deepcopy(config["quantization_config"])
    path = rng.choice([path for path in _leaves(section) if path])
    held: Any = section
    for key in path[:-1]:
        held = held[key]
    last, how = path[-1], rng.choice(["value", "value", "value", "key", "gone", "more", "moved"])
    before = held[last]
    if how == "moved":
        config["text_config"] = {"quantization_config": config.pop("quantization_config")}
    elif how == "gone":
        del held[last]
    elif how == "key" and isinstance(held, dict):
        held[f"{last}_"] = held.pop(last)
    elif how == "more" and isinstance(held, dict):
        held[rng.choice(["spin", "transform_config", "rotation", "actorder", "pre_quant_scale", "sparsity_config"])] = (
            rng.choice(["group", True, {"a": 1}])
        )
    else:
        held[last] = _other(before, rng)
    return f"config {path} {how}: {before!r}"


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value * 2, value // 2, value + 1, 0, None])
    if isinstance(value, list):
        return rng.choice([[], [*value, L], [*value, f"re:.*{M.rpartition('.')[2]}"], value[::-1], None])
    words = [
        "gptq",
        "awq",
        "fp8",
        "mxfp4",
        "modelopt",
        "compressed-tensors",
        "tensor",
        "channel",
        "group",
        "block",
        "int",
    ]
    words += ["float", "e5m2", "ue8m0", "NVFP4", "FP8", "MXFP8", "pack-quantized", "int-quantized", "float-quantized"]
    words += ["torch.uint8", "torch.float8_e4m3fn", "nvfp4-pack-quantized", "x", "re:.*"]
    return rng.choice([None, *words])
