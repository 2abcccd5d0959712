# SPDX-License-Identifier: Apache-2.0
"""Nodes of autograd that make existing results differentiable functions of the tensors from which they come.

A node keeps no tensor, and its backward pass is a plain cast. It stands where nothing of torch watches: transforms,
modes and compilers see the custom ops of `gpucast.libraries.torch.op`.
"""

from __future__ import annotations

from typing import Any

import torch

from gpucast.casting.cast import cast
from gpucast.core.dtypes import DType
from gpucast.core.errors import say_gradient_is_narrow


class _Cast(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for every type checker.
    """A cast between floating types. The gradient is cast back by the default rules."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, result: list[torch.Tensor]) -> torch.Tensor:
        ctx.kind = x.dtype
        # In a list: a tensor among the arguments would count as an input that is returned.
        return result[0]

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return cast(dy[0], ctx.kind), None


class _Identity(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """A function whose gradient is passed on as it is: it has the type of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, result: list[torch.Tensor]) -> torch.Tensor:
        return result[0]

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy[0], None


#: That of C++, without the part in Python before it, which is there for the transforms of torch.func.
_apply: Any = super(torch.autograd.Function, _Cast).apply
_apply_identity: Any = super(torch.autograd.Function, _Identity).apply
#: From the tensors of a transform that has ended to their contents; other tensors as they are.
_unwrap: Any = torch._C._functorch.unwrap_if_dead


def warn(dst: DType, caller: str = "cast") -> None:
    """Warn where the gradient of a cast to `dst` is to pass through a narrow tensor."""
    if dst.is_float and dst.bits <= 8:
        say_gradient_is_narrow(caller, dst.name)


def are_recorded(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether `y`, the cast of `x`, is to be a differentiable function of it."""
    return bool(torch.is_grad_enabled() and x.requires_grad and y.is_floating_point())


def attach(x: torch.Tensor, y: torch.Tensor, dst: DType, caller: str = "cast") -> torch.Tensor:
    """`y`, the cast of `x` to `dst`, as a function of it."""
    warn(dst, caller)
    result: torch.Tensor = _apply(_unwrap(x), [y])
    return result


def pass_on(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`y`, of the type of `x`, as a function of it whose gradient is that of `y`."""
    result: torch.Tensor = _apply_identity(_unwrap(x), [y])
    return result
