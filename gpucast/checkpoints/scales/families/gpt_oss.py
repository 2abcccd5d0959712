# SPDX-License-Identifier: Apache-2.0
"""The experts of gpt-oss: X_blocks UINT8 of shape (..., groups, 16), X_scales UINT8 of shape (..., groups).

A byte of blocks is two codes of FLOAT4E2M1, the first in the low half; a scale is the byte of FLOAT8E8M0 of 32
elements. The rows are the outputs of the layer, whereas the weight X of the model has them last: (experts, inputs,
outputs).
Source: transformers, integrations/mxfp4.py convert_moe_packed_tensors (`out.transpose(1, 2)`).
"""

from __future__ import annotations

from gpucast.checkpoints.scales.families.family import Family
from gpucast.checkpoints.scales.stored import Stored
from gpucast.core.dtypes import dtype
from gpucast.core.formats import Format
from gpucast.files import Spec, Tensor

_FORMAT = Format("found", dtype("FLOAT4E2M1"), dtype("FLOAT8E8M0"), (32,), "floor")
#: The bytes of a group.
_BYTES = 16


def _names(scale: str) -> tuple[str, str]:
    base = scale.removesuffix("_scales")
    return ("", "") if base == scale else (base, f"{base}_blocks")


def _fits(codes: Tensor, scales: Tensor) -> bool:
    return codes.dtype is not None and codes.dtype.name == "UINT8"


def _stored(base: str, codes: Tensor, scales: Tensor) -> Stored:
    if len(codes.shape) != 4 or codes.shape[-1] != _BYTES or scales.shape != codes.shape[:-1] or not codes.size:
        raise ValueError(
            f"tensor {codes.name!r} has shape {codes.shape}, and its scales {scales.name!r} have {scales.shape}; "
            f"expected (experts, rows, groups, {_BYTES}) and (experts, rows, groups)"
        )
    if scales.dtype is None or scales.dtype.name not in ("UINT8", "FLOAT8E8M0"):
        raise ValueError(f"tensor {scales.name!r} is {scales.kind}; expected UINT8 or FLOAT8E8M0")
    experts, rows, groups, _ = codes.shape
    specs = {
        "data": Spec(codes.name, codes.dtype, codes.shape),
        "scales": Spec(scales.name, scales.dtype, scales.shape),
    }
    return Stored(base, (experts, rows, groups * 32), _FORMAT, specs, "bytes", transposed=True)


def _is_half(tensor: Tensor) -> bool:
    is_blocks = tensor.name.endswith("_blocks") and len(tensor.shape) == 4 and tensor.shape[-1] == _BYTES
    is_scales = tensor.name.endswith("_scales") and len(tensor.shape) == 3
    return tensor.dtype is not None and tensor.dtype.name == "UINT8" and (is_blocks or is_scales)


FAMILY = Family("gpt-oss", _names, _fits, _stored, _is_half)
