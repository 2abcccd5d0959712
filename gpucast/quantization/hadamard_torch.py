# SPDX-License-Identifier: Apache-2.0
"""`gpucast.hadamard` of tensors that need a gradient: as a function of autograd and of the transforms of
``torch.func``, and as the custom op ``torch.ops.gpucast.hadamard`` within `torch.compile`.

The matrix is symmetric, so the gradient is the transform back, with the same signs, in the type of x.
"""

from __future__ import annotations

from typing import Any

import torch

from gpucast.core.dtypes import dtype
from gpucast.libraries.torch import gradients, tensors
from gpucast.quantization import hadamard_array

_CALLER = "hadamard"


def hadamard(
    x: torch.Tensor, length: Any, axis: Any, signs: tuple[Any, Any], inverse: Any, to: Any, out: Any
) -> torch.Tensor | None:
    """The transform with its gradient; None, nothing done, where nothing records gradients."""
    if out is not None:
        tensors.check_into(x, _CALLER)
        return None
    if torch.compiler.is_compiling():
        given, seed = signs
        if not _fits_op(length, axis, given, seed, inverse):
            # Between two graphs, with the gradient: there every argument is checked as it is.
            return gradients.untraced(hadamard, x, length, axis, signs, inverse, to, out)
        given = None if given is None else [int(sign) for sign in given]
        seed = seed if seed is None or seed < 1 << 63 else seed - (1 << 64)
        return _op(x, length, axis, given, seed, inverse, dtype(to, caller=f"{_CALLER}: to=").name)
    if tensors.transformed() or (x.requires_grad and torch.is_grad_enabled()):
        return _Hadamard.apply(x, length, axis, signs, inverse, to)
    return None


def _fits_op(length: Any, axis: Any, signs: Any, seed: Any, inverse: Any) -> bool:
    """Whether the op takes the arguments unchanged: torch converts them to the few types that ops have."""
    if type(length) is not int or type(axis) is not int or type(inverse) is not bool:
        return False
    if signs is not None and type(signs) not in (list, tuple):
        return False
    if signs is not None and not all(type(sign) in (int, float) and sign in (1, -1) for sign in signs):
        return False
    return seed is None or (type(seed) is int and 0 <= seed < 1 << 64)


class _Hadamard(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for every type checker.
    jvp = gradients.without_forward_mode(_CALLER)

    @staticmethod
    def forward(x: torch.Tensor, length: Any, axis: Any, signs: tuple[Any, Any], inverse: Any, to: Any) -> torch.Tensor:
        y: torch.Tensor = hadamard_array.transformed(x, length, axis, signs, inverse, to, None)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.back = _back(inputs)

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> Any:
        return _Hadamard.apply(*dy, *ctx.back), *[None] * len(ctx.back)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], x: torch.Tensor, length: Any, axis: Any, *others: Any) -> Any:
        batch = dims[0] % x.ndim
        shape = x.shape[:batch] + x.shape[batch + 1 :]
        place = hadamard_array.checked_axis(axis, tuple(shape))
        return _Hadamard.apply(x.movedim(batch, 0), length, place + 1, *others), 0


def _back(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of the gradient after the tensor, from those of the transform."""
    x, *others, inverse, _ = inputs
    return *others, not inverse, tensors.dtype_of(x, _CALLER).name


def _run(
    x: torch.Tensor, length: int, axis: int, signs: list[int] | None, seed: int | None, inverse: bool, to: str
) -> torch.Tensor:
    of_signs = signs, None if seed is None else seed % (1 << 64)
    y: torch.Tensor = hadamard_array.transformed(x, length, axis, of_signs, inverse, to, None)
    return y


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.back = _back(inputs)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    return _op(dy, *ctx.back), *[None] * len(ctx.back)


_op: Any = torch.library.custom_op(
    "gpucast::hadamard",
    _run,
    mutates_args=(),
    schema="(Tensor x, int length, int axis, int[]? signs, int? seed, bool inverse, str to) -> Tensor",
)
_op.register_fake(lambda x, *others: x.new_empty(x.shape, dtype=tensors.TORCH_DTYPES[dtype(others[-1])]))
_op.register_autograd(_backward, setup_context=_setup)
