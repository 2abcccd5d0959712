# SPDX-License-Identifier: Apache-2.0
"""The custom ops of plain casts: ``torch.ops.gpucast.cast``, and ``cast_out``, which writes into a tensor."""

from __future__ import annotations

from typing import Any

import torch

from gpucast.core.dtypes import dtype
from gpucast.core.options import DEFAULT_OPSET
from gpucast.interop.torch.tensors import DEFAULTS, check_batched, dtype_of, fill, has_tensors, named, new

_SCHEMA = (
    f"str to, bool saturate=True, str round_mode='up', int opset={DEFAULT_OPSET}, str? rounding=None, "
    "str? overflow=None"
)


def _cast(x: torch.Tensor, to: str, *attributes: Any) -> torch.Tensor:
    y = new(x, to, *attributes)
    dst = dtype(to)
    fill(x, y, dst, named(attributes), not has_tensors(dst))
    return y


def _cast_out(x: torch.Tensor, out: torch.Tensor, to: str, *attributes: Any) -> None:
    fill(x, out, dtype(to, caller="cast: to="), named(attributes), False)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    return cast_op(dy, ctx.src), None, *[None for _ in DEFAULTS]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.src = dtype_of(inputs[0], "cast").name


def _batched(info: Any, dims: tuple[Any, ...], x: torch.Tensor, to: str, *attributes: Any) -> Any:
    """A batch is cast like any tensor, because the op is element-wise."""
    check_batched(to)
    # Pairs lie along the last axis, which so is none of the batch.
    return cast_op(x.movedim(dims[0], 0), to, *attributes), 0


cast_op: Any = torch.library.custom_op(
    "gpucast::cast", _cast, mutates_args=(), schema=f"(Tensor x, {_SCHEMA}) -> Tensor"
)
cast_op.register_fake(new)
cast_op.register_autograd(_backward, setup_context=_setup)
cast_op.register_vmap(_batched)
cast_out_op: Any = torch.library.custom_op(
    "gpucast::cast_out", _cast_out, mutates_args=("out",), schema=f"(Tensor x, Tensor(a!) out, {_SCHEMA}) -> ()"
)
cast_out_op.register_fake(lambda *arguments: None)
