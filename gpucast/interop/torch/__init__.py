# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `gpucast.cast` of tensors, as the custom op ``torch.ops.gpucast.cast``.

`gpucast.cast` and `cast_like` take tensors in host memory and on CUDA devices and give tensors, on torch's current
stream and in torch's memory, with no copy beside the cast itself. Types of one byte or more have torch's own dtype.
FLOAT4E2M1 is ``torch.float4_e2m1fn_x2``: pairs along the last axis, whose length must be even. The other types below
one byte are a `PackedArray` over a tensor's memory (torch has no packed integers, cannot even print its ``int4``, and
has no float6); `PackedArray.to_torch` gives the tensor of bytes. As input ``torch.int4``, ``uint4``, ``int2`` and
``uint2`` have one element per byte. STRING is a NumPy array of str.

Gradients: for ``y = cast(x, to, ...)`` between floating types the gradient is ``cast(dy, x.dtype)``, with the defaults
of `gpucast.cast`: rounding and clamping count as the identity. torch hands over dy in the type of y. To and from
integers, BOOL and types below one byte nothing is differentiable. The transforms of ``torch.func``, but for forward
mode, take casts to types of one byte or more; in a ``vmap`` each part of the batch takes the same random bits, as if it
were cast alone.
With a `scale` the gradient is ``cast(dy, x.dtype, scale=scale)``: cast back, times the number. None goes to `scale`
itself, nor by way of `amax`; both may be tensors on x's device.

``torch.compile`` keeps a cast as one node of the graph (not where the result is a `PackedArray`: call
``torch.ops.gpucast.cast``, which gives its bytes as a flat uint8 tensor). With `amax` the node gives a new one, which
is copied into it. Inductor fuses nothing into that node. Within a chain of element-wise operations
``x.to(torch.bfloat16)`` is the better choice: inductor fuses it with its neighbours, and saves whole passes over
memory. Use gpucast where its rules matter (float8 with ONNX's saturation, FLOAT8E8M0, float4, integers, one rounding
from float64) or where the cast stands alone.
"""

from __future__ import annotations

try:
    import torch
except ImportError as error:
    raise ImportError(f"gpucast.interop.torch needs PyTorch ({error}): pip install torch") from error

if not hasattr(torch.library, "register_vmap"):
    raise ImportError(f"gpucast.interop.torch needs PyTorch 2.5 or newer; this is {torch.__version__}")

from gpucast.interop.torch.adapter import ADAPTER
from gpucast.interop.torch.tensors import check_into, check_scale, from_packed, stream, take

__all__ = ["ADAPTER", "check_into", "check_scale", "from_packed", "stream", "take"]
