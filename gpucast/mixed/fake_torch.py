# SPDX-License-Identifier: Apache-2.0
"""`gpucast.mixed.fake_cast` of tensors: the gradient is that of the result, in autograd, in the transforms of
``torch.func``, and, as the custom op ``torch.ops.gpucast.fake_cast``, within `torch.compile`.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch

from gpucast.core.rule import Options
from gpucast.libraries.torch import gradients, tensors
from gpucast.mixed import fake_casts
from gpucast.mixed.fake_casts import CALLER
from gpucast.quantization.formats import FORMATS, Format
from gpucast.quantization.recipes import RECIPES

_SIZE = 2**64
#: Formats that are known without an exception, which not every compiler of torch follows.
_FORMATS = frozenset([*FORMATS, *RECIPES])


def _named(to: Any) -> tuple[Any, bool]:
    """The text for the op, which takes only names: of a type, or a format as it is; and whether it is one."""
    if type(to) is str and to.lower() in _FORMATS:
        return to, True
    narrow = fake_casts.narrow_type(to)
    return (to, True) if isinstance(narrow, Format) else (narrow.name, False)


def fake_cast(x: torch.Tensor, to: Any, options: Options, axis: Any) -> torch.Tensor:
    """The values with their gradient."""
    if isinstance(options.scale, torch.Tensor):
        tensors.check_scale(options.scale, CALLER)
    if options.out is not None:
        tensors.check_into(x, CALLER)
        result: torch.Tensor = gradients.untraced(fake_casts.there_and_back, x, to, options, axis)
        return result
    compiling = torch.compiler.is_compiling()
    name, is_format = _named(to)
    fake_casts.check_keywords(name, is_format, options, axis)
    y: torch.Tensor
    if not tensors.is_plain(x):
        if type(name) is str and _fits_op(options, axis):
            tensors.dtype_of(x, CALLER)
            op = _op if compiling or not tensors.transformed() else _FakeCast.apply
            y = op(x, *_arguments(name, options, axis))
            return y
        if compiling:
            # Between two graphs, with the gradient.
            return gradients.untraced(fake_cast, x, to, options, axis)
    y = _values(x, to, options, axis)
    return gradients.pass_on(x, y) if x.requires_grad and torch.is_grad_enabled() else y


def _values(x: torch.Tensor, to: Any, options: Options, axis: Any) -> torch.Tensor:
    # Other layouts than numbers in memory have are refused by name.
    tensors.dtype_of(x, CALLER)
    with torch.no_grad():
        if type(to) is str and to.lower() in _FORMATS and tensors.is_plain(x) and _is_row_major(x):
            blocks: torch.Tensor = fake_casts.there_and_back(x.detach(), to, options, axis)
            return blocks
        y = torch.empty_like(x)
        fake_casts.there_and_back(x.detach(), to, options._replace(out=y), axis)
    return y


def _is_row_major(x: torch.Tensor) -> bool:
    """Whether a tensor has the strides of a new one, also along axes of one element."""
    steps = itertools.accumulate(reversed(x.shape[1:]), operator.mul, initial=1)
    return bool(x.stride() == (*steps,)[::-1])


def _fits_op(options: Options, axis: Any) -> bool:
    """Whether the op takes the arguments unchanged: torch converts them to the few types that ops have."""
    scale, seed, offset = options.scale, options.seed, options.offset
    return (
        options.amax is None
        and (scale is None or type(scale) in (int, float) or isinstance(scale, torch.Tensor))
        and (seed is None or (type(seed) is int and 0 <= seed < _SIZE))
        and (type(offset) is int and 0 <= offset < _SIZE)
        and type(options.saturate) is bool
        and type(axis) is int
        and all(x is None or type(x) is str for x in (options.round_mode, options.rounding, options.overflow))
    )


def _arguments(name: str, options: Options, axis: int) -> tuple[Any, ...]:
    """The arguments of the op after the tensor. Ops take only signed 64-bit integers, so seeds are passed as such."""
    scale: Any = options.scale
    number = None
    if scale is not None and not isinstance(scale, torch.Tensor):
        scale, number = None, float(scale)
    seed, offset = (None if n is None else n - _SIZE if n >= _SIZE // 2 else n for n in (options.seed, options.offset))
    saturate, round_mode, _, rounding, overflow, *_ = options
    return scale, number, name, saturate, round_mode, rounding, overflow, seed, offset, axis


def _run(x: torch.Tensor, scale: torch.Tensor | None, number: float | None, name: str, *others: Any) -> torch.Tensor:
    saturate, round_mode, rounding, overflow, seed, offset, axis = others
    options = Options(
        saturate=saturate, round_mode=round_mode, rounding=rounding, overflow=overflow,
        seed=seed if seed is None else seed % _SIZE, offset=offset % _SIZE,
        scale=number if scale is None else scale, caller=CALLER,
    )  # fmt: skip
    return _values(x, name, options, axis)


def _batched(info: Any, dims: tuple[Any, ...], x: torch.Tensor, scale: Any, number: Any, *others: Any) -> Any:
    """The result of a loop over the batch: each part gets the same random words."""
    along, of_scale, *_ = dims
    parts = [
        _op(
            x if along is None else x.select(along, i),
            scale if of_scale is None else scale.select(of_scale, i),
            number,
            *others,
        )
        for i in range(info.batch_size)
    ]
    return torch.stack(parts), 0


_op: Any = torch.library.custom_op(
    "gpucast::fake_cast",
    _run,
    mutates_args=(),
    schema=(
        "(Tensor x, Tensor? scale, float? number, str to, bool saturate, str round_mode, str? rounding, "
        "str? overflow, SymInt? seed, SymInt offset, int axis) -> Tensor"
    ),
)
_op.register_fake(lambda x, *others: torch.empty_like(x))
_op.register_autograd(lambda ctx, dy: (dy, *[None] * 10))
_op.register_vmap(_batched)


class _FakeCast(torch.autograd.Function):  # type: ignore[misc]  # torch is not there for every type checker.
    """The op with its gradient for the transforms of ``torch.func``, which ignore `register_autograd`."""

    generate_vmap_rule = True
    jvp = gradients.without_forward_mode(CALLER)

    @staticmethod
    def forward(*arguments: Any) -> torch.Tensor:
        y: torch.Tensor = _op(*arguments)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> Any:
        return *dy, *[None] * 10
