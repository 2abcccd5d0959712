# SPDX-License-Identifier: Apache-2.0
"""Cast and CastLike as modules of PyTorch: `gpucast.layers` with torch's own gradients."""

from __future__ import annotations

from typing import Any

import torch

from gpucast import layers
from gpucast.interop.torch import tensors

Layer = layers.Cast | layers.CastLike


class Cast(torch.nn.Module):  # type: ignore[misc]
    """`gpucast.layers.Cast` as a module: the same parameters, of which `training` means nothing here.

    The gradient of x is that of the layer's `backward`, `lda_coeff` included. Casts from and to integers, BOOL, text
    and types below one byte have none.
    """

    def __init__(self, to: Any, **attributes: Any) -> None:
        super().__init__()
        self.layer = layers.Cast(to, **attributes)

    def forward(self, x: torch.Tensor) -> Any:
        """``gpucast.cast(x, to)`` with the layer's attributes."""
        return _differentiable(self.layer, x)

    def extra_repr(self) -> str:
        return self.layer.extra_repr()


class CastLike(torch.nn.Module):  # type: ignore[misc]
    """`gpucast.layers.CastLike` as a module, as `Cast` is one; `like` gets no gradient."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = layers.CastLike(**attributes)

    def forward(self, x: torch.Tensor, like: Any) -> Any:
        """``gpucast.cast_like(x, like)`` with the layer's attributes."""
        return _differentiable(self.layer, x, like.detach() if isinstance(like, torch.Tensor) else like)

    def extra_repr(self) -> str:
        return self.layer.extra_repr()


def _differentiable(layer: Layer, x: torch.Tensor, *like: Any) -> Any:
    if not x.is_floating_point():
        return layer.forward(x, *like)
    return _Differentiable.apply(layer, x, *like)


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, layer: Layer, x: torch.Tensor, *like: Any) -> Any:
        ctx.layer, ctx.src = layer, tensors.dtype_of(x, "cast")
        y = layer.forward(x.detach(), *like)
        if isinstance(y, torch.Tensor) and not y.is_floating_point():
            ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        dx = ctx.layer.gradient(dy, ctx.src, f"{ctx.layer!r}.backward")
        return None, dx, *[None] * (len(ctx.needs_input_grad) - 2)
