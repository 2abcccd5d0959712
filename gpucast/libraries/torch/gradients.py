# SPDX-License-Identifier: Apache-2.0
"""Nodes of autograd that make existing results differentiable functions of the tensors from which they come, one or
many; and calls outside of compiled graphs.

A node keeps no tensor but the scale, and its backward pass is a cast. It stands where nothing of torch watches:
transforms, modes and compilers see the custom ops of `gpucast.libraries.torch.op`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gpucast.casting.cast import cast
from gpucast.casting.cast_many import cast_many
from gpucast.core.dtypes import DType
from gpucast.core.errors import say_gradient_is_narrow
from gpucast.libraries.torch import tensors

#: Calls a function that torch.compile does not trace, but runs between two graphs.
untraced: Any = torch.compiler.disable(lambda function, *arguments: function(*arguments))


class _Cast(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for every type checker.
    """A cast between floating types. The gradient is cast back by the default rules, times the scale."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, result: list[torch.Tensor], scale: Any = None) -> torch.Tensor:
        ctx.kind, ctx.scale = x.dtype, scale
        if isinstance(scale, torch.Tensor):
            # Saved, so that the backward pass fails if it was changed in the meantime.
            ctx.save_for_backward(scale)
            ctx.scale = None
        # In a list: a tensor among the arguments would count as an input that is returned.
        return result[0]

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.scale is None and not ctx.saved_tensors:
            return cast(dy[0], ctx.kind), None, None
        (scale,) = ctx.saved_tensors or (ctx.scale,)
        return cast(dy[0], ctx.kind, scale=scale), None, None


class _Identity(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """A function whose gradient is passed on as it is: it has the type of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, result: list[torch.Tensor]) -> torch.Tensor:
        return result[0]

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy[0], None


class _BatchCast(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """Makes existing results differentiable functions of the tensors that they were cast from."""

    @staticmethod
    def forward(ctx: Any, results: list[torch.Tensor], scale: Any, *sources: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kinds, ctx.scale = [x.dtype for x in sources], scale
        if isinstance(scale, torch.Tensor):
            # Saved, so that the backward pass fails if it was changed in the meantime.
            ctx.save_for_backward(scale)
            ctx.scale = None
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor | None) -> tuple[Any, ...]:
        (scale,) = ctx.saved_tensors or (ctx.scale,)
        dx: list[Any] = [None] * len(dy)
        for kind in set(ctx.kinds):
            places = [i for i, one in enumerate(dy) if one is not None and ctx.kinds[i] is kind]
            cast_back = cast_many([dy[i] for i in places], kind, scale=scale)
            for i, gradient in zip(places, cast_back, strict=True):
                dx[i] = gradient
        return None, None, *dx


#: That of C++, without the part in Python before it, which is there for the transforms of torch.func.
_apply: Any = super(torch.autograd.Function, _Cast).apply
_apply_identity: Any = super(torch.autograd.Function, _Identity).apply
_apply_batch: Any = super(torch.autograd.Function, _BatchCast).apply


def without_forward_mode(caller: str = "") -> Any:
    """The `jvp` of a function of torch that has none: torch's own message speaks to the function's author. "": its
    context has the caller."""

    def refuse(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            f"{caller or ctx.caller}: "
            "forward mode (torch.func.jvp, jacfwd and hessian, dual numbers) is not supported; expected "
            "reverse mode: torch.func.vjp, grad or jacrev, or backward()"
        )

    return staticmethod(refuse)


def warn(dst: DType, caller: str = "cast") -> None:
    """Warn where the gradient of a cast to `dst` is to pass through a narrow tensor."""
    if dst.is_float and dst.bits <= 8:
        say_gradient_is_narrow(caller, dst.name)


def attach(x: torch.Tensor, y: torch.Tensor, scale: Any = None, caller: str = "cast") -> torch.Tensor:
    """`y`, the cast of `x` times `scale`, as a function of it."""
    if y.dtype.itemsize == 1:
        warn(tensors.dtype_of(y, caller), caller)
    result: torch.Tensor = _apply(x, [y], _lasting(scale))
    return result


def _lasting(scale: Any) -> Any:
    """A scale for the backward pass, before which an array of NumPy may be changed, as that of delayed scales is."""
    return scale.copy() if isinstance(scale, np.ndarray) else scale


def attach_all(sources: list[torch.Tensor], results: list[Any], scale: Any, caller: str = "cast_many") -> list[Any]:
    """The results of `gpucast.cast_many`, made differentiable where a floating source requires a gradient.

    The gradients are those of `gpucast.cast`, all cast in one launch.
    """
    places = [
        i
        for i, (x, y) in enumerate(zip(sources, results, strict=True))
        if x.requires_grad and isinstance(y, torch.Tensor) and y.dtype.is_floating_point
    ]
    attached = list(results)
    if places and torch.is_grad_enabled():
        for i in places:
            if results[i].dtype.itemsize == 1:
                warn(tensors.dtype_of(results[i], caller), caller)
        differentiable = _apply_batch([results[i] for i in places], _lasting(scale), *[sources[i] for i in places])
        for i, y in zip(places, differentiable, strict=True):
            attached[i] = y
    return attached


def pass_on(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`y`, of the type of `x`, as a function of it with the gradient of `y`."""
    result: torch.Tensor = _apply_identity(x, [y])
    return result
