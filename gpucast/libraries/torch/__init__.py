# SPDX-License-Identifier: Apache-2.0
"""PyTorch: `gpucast.cast` of tensors, as the custom op ``torch.ops.gpucast.cast``.

`gpucast.cast` and `cast_like` take tensors on the host and on CUDA devices and return tensors, on torch's current
stream and in torch's memory, without further copies. Types of one byte or more have torch's own dtype. FLOAT4E2M1 is
``torch.float4_e2m1fn_x2``: pairs along the last axis, whose length must be even. The other types below one byte give a
`PackedArray` over a tensor's memory (torch has no packed integers, cannot even print its ``int4``, and has no float6);
`PackedArray.to_torch` returns the tensor of bytes, and a cast of it is a tensor again. As input ``torch.int4``,
``uint4``, ``int2`` and ``uint2`` have one element per byte. STRING is a NumPy array of str.

Gradients: for ``y = cast(x, to, ...)`` between floating types of any width the gradient is ``cast(dy, x.dtype)`` with
the defaults of `gpucast.cast`, that is, rounding and clamping count as the identity. torch passes dy in the type of y,
of which a cast to 8 bits or fewer warns once in a process: `gpucast.mixed.fake_cast` has dy in the type of x.
No gradient passes through a `PackedArray`, so a cast to float6 refuses an x that requires one (ValueError); the layer
`gpucast.layers.Cast` has it. Casts from and to integers, BOOL and STRING are not differentiable. The transforms of
``torch.func`` except forward mode support casts to types of one byte or more and to FLOAT4E2M1; in a ``vmap`` each part
of the batch gets the same random bits, as if it were cast alone. With a `scale` the gradient is
``cast(dy, x.dtype, scale=scale)``: cast back, times the scale. `scale` and `amax`, which may be tensors on x's device,
get no gradient.

`Cast` and `CastLike` are `gpucast.layers` as modules (``torch.nn.Module``), with `lda_coeff`, the gradient's factor.
`Linear8` is ``torch.nn.Linear`` with float8 products, forward and backward.

`gpucast.hadamard` of a tensor has the transform back as its gradient, in torch.func and ``torch.compile`` too.

``torch.compile`` keeps a cast as one node of the graph. Where the result is a `PackedArray` or text it calls gpucast
between two graphs; ``torch.ops.gpucast.cast`` stays in the graph and returns the packed bytes as a flat uint8 tensor.
With `amax` the node returns a new value, which is then copied into `amax`. Inductor fuses nothing into that node.
Within a chain of element-wise operations ``x.to(torch.bfloat16)`` is the better choice, because inductor fuses it with
its neighbours and saves passes over memory. Use gpucast where its rules matter (float8 with ONNX's saturation,
FLOAT8E8M0, float4, integers, one rounding from float64) or where the cast stands alone.
"""

from __future__ import annotations

try:
    import torch
except ImportError as error:
    raise ImportError(f"gpucast.interop.torch needs PyTorch ({error}): pip install torch") from error

if not hasattr(torch.library, "register_vmap"):
    raise ImportError(f"gpucast.interop.torch needs PyTorch 2.5 or newer; this is {torch.__version__}")

from gpucast.libraries.torch.library import LIBRARY
from gpucast.libraries.torch.tensors import check_scale, from_packed, stream, take

__all__ = ["LIBRARY", "check_scale", "from_packed", "stream", "take"]
