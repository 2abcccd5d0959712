# SPDX-License-Identifier: Apache-2.0
"""The parts of `gpucast.cast_many` for tensors: gradients, and calls outside of compiled graphs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast_many import cast_many
from gpucast.libraries.torch import gradients, tensors

#: Calls a function that torch.compile does not trace, but runs between two graphs.
untraced: Any = torch.compiler.disable(lambda function, *arguments: function(*arguments))


class _BatchCast(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for every type checker.
    """Makes existing results differentiable functions of the tensors that they were cast from."""

    @staticmethod
    def forward(ctx: Any, results: list[torch.Tensor], scale: Any, *sources: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kinds, ctx.scale = [x.dtype for x in sources], None if isinstance(scale, torch.Tensor) else scale
        if ctx.scale is not scale:
            # Saved, so that the backward pass fails if it was changed in the meantime.
            ctx.save_for_backward(scale)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[Any, ...]:
        (scale,) = ctx.saved_tensors or (ctx.scale,)
        dx: list[Any] = [None] * len(dy)
        for kind in set(ctx.kinds):
            places = [i for i, one in enumerate(dy) if one is not None and ctx.kinds[i] is kind]
            gradients = cast_many([dy[i] for i in places], kind, scale=scale)
            for i, gradient in zip(places, gradients, strict=True):
                dx[i] = gradient
        return None, None, *dx


def attach(sources: list[torch.Tensor], results: list[Any], scale: Any, caller: str = "cast_many") -> list[Any]:
    """The results of `gpucast.cast_many`, made differentiable where a floating source requires a gradient.

    The gradients are those of `gpucast.cast`, all cast in one launch.
    """
    places = [
        i
        for i, (x, y) in enumerate(zip(sources, results, strict=True))
        if x.requires_grad and isinstance(y, torch.Tensor) and y.dtype.is_floating_point
    ]
    for x, y in zip(sources, results, strict=True):
        if isinstance(y, PackedArray):
            tensors.check_gradient(x, y.dtype, "cast_many")
    attached = list(results)
    if places and torch.is_grad_enabled():
        if scale is not None and math.prod(np.shape(scale)) != 1:
            raise ValueError("cast_many: a scale for each array is not differentiable; pass detached tensors")
        for i in places:
            gradients.warn(tensors.dtype_of(results[i], caller), caller)
        differentiable = _BatchCast.apply([results[i] for i in places], scale, *[sources[i] for i in places])
        for i, y in zip(places, differentiable, strict=True):
            attached[i] = y
    return attached
