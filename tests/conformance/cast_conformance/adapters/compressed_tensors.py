# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors, with which llm-compressor quantizes, on the CPU: block formats only."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as codes_of
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

_MX: dict[str, Any] = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
_NV: dict[str, Any] = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn}
_FP8: dict[str, Any] = {"num_bits": 8, "type": "float"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "mxfp4_even": {"num_bits": 4} | _MX,
    "compressed-tensors-mxfp8": {"num_bits": 8} | _MX,
    "compressed-tensors-nvfp4": {"num_bits": 4, "type": "float"} | _NV,
    "compressed-tensors-fp8": {"strategy": "tensor"} | _FP8,
    "compressed-tensors-fp8-row": {"strategy": "channel"} | _FP8,
    "compressed-tensors-fp8-128x128": {"strategy": "block", "block_structure": [128, 128]} | _FP8,
    "compressed-tensors-int4-32": {"num_bits": 4, "strategy": "group", "group_size": 32},
    "compressed-tensors-int4-128": {"num_bits": 4, "strategy": "group", "group_size": 128},
    "compressed-tensors-int8-row": {"num_bits": 8, "strategy": "channel"},
    "compressed-tensors-int4-row": {"num_bits": 4, "strategy": "channel"},
    "compressed-tensors-int8-128": {"num_bits": 8, "strategy": "group", "group_size": 128},
}
#: Of these the suite has no table.
OTHERS = ("compressed-tensors-fp8-128x128", "compressed-tensors-int4-row", "compressed-tensors-int8-128")
BLOCKS = tuple(name for name in _OPTIONS if name not in OTHERS)


def version() -> str:
    return f"compressed-tensors {installed('compressed-tensors')}"


def quantize(x: Any, name: str) -> Any:
    return quantize_tensor(torch.from_numpy(x), name)


def quantize_tensor(given: torch.Tensor, name: str) -> Any:
    """What `quantize` gives, for a matrix of FLOAT, BFLOAT16 or FLOAT16. bench/peers runs it on more matrices."""
    args = QuantizationArgs(**_OPTIONS[name])
    if args.strategy == "tensor":
        groups = given.reshape(1, -1)
    elif args.strategy == "block":
        groups = given.unflatten(0, (-1, 128)).unflatten(-1, (-1, 128)).transpose(1, 2).flatten(2)
    else:
        groups = given.unflatten(-1, (-1, args.group_size or given.shape[1]))
    low, high = groups.amin(-1), groups.amax(-1)
    one = generate_gparam(low.min(), high.max()) if args.strategy == "tensor_group" else None
    scale, zero = calculate_qparams(low, high, args, global_scale=one)
    codes = codes_of(given, scale, zero, args, global_scale=one)
    if args.scale_dtype is torch.uint8:
        # As it is stored: the exponents of powers of two.
        scale = torch.exp2(torch.floor(torch.log2(scale.float())))
    return codes.float().numpy(), scale.float().numpy(), 1.0 if one is None else (1 / one).item()
