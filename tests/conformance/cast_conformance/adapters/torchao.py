# SPDX-License-Identifier: Apache-2.0
"""torchao on the CPU: block formats only."""

from __future__ import annotations

from typing import Any

import torch
import torchao
from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
from torchao.quantization import quant_primitives as primitives

_MX = {
    "mxfp8e4m3": "FLOOR",
    "mxfp8e4m3_even": "EVEN",
    "mxfp4": "FLOOR",
    "mxfp4_even": "EVEN",
    "torchao-mxfp8-rceil": "RCEIL",
    "torchao-mxfp4-rceil": "RCEIL",
    "torchao-0.18-mxfp8-floor": "FLOOR",
    "torchao-0.18-mxfp8-even": "EVEN",
    "torchao-0.18-mxfp4-floor": "FLOOR",
    "torchao-0.18-mxfp4-even": "EVEN",
}
_FLOAT8 = ("torchao-float8-row", "torchao-float8-tensor")
#: Bits, and the length of a block; 0 for whole rows.
_INTEGERS = {"torchao-int4-32": (4, 32), "torchao-int4-128": (4, 128), "torchao-int8-row": (8, 0)}
BLOCKS = (*_MX, "torchao-nvfp4", "torchao-nvfp4-one-level", *_FLOAT8, *_INTEGERS)


def version() -> str:
    return f"torchao {torchao.__version__}, PyTorch {torch.__version__.partition('+')[0]}"


def quantize(x: Any, name: str) -> Any:
    return quantize_tensor(torch.from_numpy(x), name)


def quantize_tensor(given: torch.Tensor, name: str) -> Any:
    """What `quantize` gives, for a matrix of FLOAT, BFLOAT16 or FLOAT16. bench/peers runs it on more matrices."""
    one = 1.0
    if given.dtype == torch.float16 and (name in _MX or "nvfp4" in name):
        # These functions refuse FLOAT16, which FLOAT holds.
        given = given.float()
    if name in _MX:
        kind = torch.float8_e4m3fn if "fp8" in name else torch.float4_e2m1fn_x2
        scale, data = mx_tensor.to_mx(given, kind, 32, mx_tensor.ScaleCalculationMode[_MX[name]])
    elif "nvfp4" in name:
        two = None if "one" in name else nvfp4_tensor.per_tensor_amax_to_scale(given.abs().max())
        one = 1.0 if two is None else two.item()
        scale, data = nvfp4_tensor.nvfp4_quantize(given, per_tensor_scale=two)
    elif name in _FLOAT8:
        scale = primitives._choose_scale_float8(given, [1 if "row" in name else given.shape[0], given.shape[1]])
        data = primitives._quantize_affine_float8(given, scale)
    else:
        bits, length = _INTEGERS[name]
        block = [1, length or given.shape[1]]
        arguments = (torch.int8, -(1 << bits - 1), (1 << bits - 1) - 1)
        kind = primitives.MappingType.SYMMETRIC
        scale, zero = primitives.choose_qparams_affine(given, kind, block, *arguments)
        data = primitives.quantize_affine(given, block, scale, zero, *arguments)
    if data.element_size() == 1 and data.shape != given.shape:
        codes = data.view(torch.uint8)
        halves = torch.stack([codes & 15, codes >> 4], -1).reshape(given.shape).int()
        data = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[halves & 7] * (1 - 2 * (halves >> 3))
    return data.float().numpy(), scale.float().numpy(), one
