# SPDX-License-Identifier: Apache-2.0
"""The names of DeepSeek-V4 and V4.1: X.weight with X.scale in FLOAT8E8M0.

Weights of FLOAT8E4M3FN have a scale for each block of 128x128; those of routed experts (expert_dtype fp4) are pairs of
FLOAT4E2M1 in INT8, the first in the low half, with a scale for each 32 elements of a row. Sources: deepseek-ai/
DeepSeek-V4-Flash (quantization_config: scale_fmt ue8m0, weight_block_size [128, 128]); transformers, integrations/
finegrained_fp8.py Fp8Dequantize and quantizers/quantizer_finegrained_fp8.py, which renames `.scale`.
"""

from __future__ import annotations

from gpucast.checkpoints.scales.families.family import Family
from gpucast.files import Tensor


def _names(scale: str) -> tuple[str, str]:
    module = scale.removesuffix(".scale")
    return ("", "") if module == scale else (f"{module}.weight", f"{module}.weight")


def _fits(codes: Tensor, scales: Tensor) -> bool:
    return scales.dtype is not None and scales.dtype.name == "FLOAT8E8M0"


FAMILY = Family("deepseek-v4", _names, _fits)
