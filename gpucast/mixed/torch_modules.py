# SPDX-License-Identifier: Apache-2.0
"""The layers as modules of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from gpucast.mixed import layers


class Cast(torch.nn.Module):  # type: ignore[misc]
    """`gpucast.layers.Cast` as a module: the same parameters; `training` has no effect here.

    The gradient of x is that of the layer's `backward`, `lda_coeff` included. Casts from and to integers, BOOL and text
    have none. ValueError for an x that requires a gradient and a type whose results are no tensors (float6).
    """

    def __init__(self, to: Any, **attributes: Any) -> None:
        super().__init__()
        self.layer = layers.Cast(to, **attributes)

    def forward(self, x: torch.Tensor) -> Any:
        """``gpucast.cast(x, to)`` with the layer's attributes."""
        return self.layer.result(x)

    def extra_repr(self) -> str:
        return self.layer.extra_repr()


class CastLike(torch.nn.Module):  # type: ignore[misc]
    """`gpucast.layers.CastLike` as a module, as `Cast` is one; `like` gets no gradient."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = layers.CastLike(**attributes)

    def forward(self, x: torch.Tensor, like: Any) -> Any:
        """``gpucast.cast_like(x, like)`` with the layer's attributes."""
        return self.layer.result(x, like)

    def extra_repr(self) -> str:
        return self.layer.extra_repr()
