# SPDX-License-Identifier: Apache-2.0
"""The custom ops: ``torch.ops.gpucast.cast``, and ``cast_out``, which writes into a tensor; ``fused_cast`` and
``fused_cast_out``, with stochastic rounding, `scale` or `amax`.

In eager mode a cast is one launch, which also writes `amax`. `torch.compile` and the transforms of ``torch.func``
require functions without side effects: there the op returns the result and the new `amax`, which is then copied back.
Layers (`gpucast.layers`) cast by the op everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gpucast.casting.cast import cast_with
from gpucast.casting.cast import times as array_times
from gpucast.casting.fuse import resolve_scale
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import Options
from gpucast.libraries.torch import gradients, tensors
from gpucast.libraries.torch.tensors import DEFAULTS, check_batched, dtype_of, fill, has_tensors, named, new

_SCHEMA = "str to, bool saturate=True, str round_mode='up', int? opset=None, str? rounding=None, str? overflow=None"
_SIZE = 2**64
#: The arguments of an op after the tensors. Ops take only signed 64-bit integers, so seeds are passed as such.
_FUSED_SCHEMA = (
    "str to, bool saturate, str round_mode, int? opset, str? rounding, str? overflow, SymInt? seed, SymInt offset, "
    "float? number, str caller"
)
#: How many arguments of an op have no gradient.
_INPUTS = 13


def _cast(x: torch.Tensor, to: str, *attributes: Any) -> torch.Tensor:
    y = new(x, to, *attributes)
    dst = dtype(to)
    fill(x, y, dst, named(attributes), not has_tensors(dst))
    return y


def _cast_out(x: torch.Tensor, out: torch.Tensor, caller: str, to: str, *attributes: Any) -> None:
    fill(x, out, dtype(to, caller=f"{caller}: to="), named(attributes), False, caller=caller)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    return cast_op(dy, ctx.src), None, *[None for _ in DEFAULTS]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    src = dtype_of(inputs[0], "cast")
    ctx.src = src.name
    if src.is_float:
        gradients.warn(dtype(inputs[1]))


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
    "gpucast::cast_out",
    _cast_out,
    mutates_args=("out",),
    schema=f"(Tensor x, Tensor(a!) out, str caller, {_SCHEMA}) -> ()",
)
cast_out_op.register_fake(lambda *arguments: None)


def plain_cast(x: torch.Tensor, dst: DType, attributes: tuple[Any, ...]) -> torch.Tensor:
    """Cast a tensor where it is; `attributes`: all of them, or () for the defaults."""
    # The op takes longer than the cast of many a tensor.
    cast = _cast if tensors.is_plain(x) and not x.requires_grad else cast_op
    y: torch.Tensor = cast(x, dst.name, *attributes)
    return y


def fused_cast(
    x: torch.Tensor,
    dst: DType,
    attributes: tuple[Any, ...],
    random: Random | None,
    options: Options,
    target: torch.device,
    slope: float | None = None,
) -> Any:
    """Cast a tensor where it is and move the result to `target`; `attributes`: all of them, or () for the defaults.

    `slope`: the coefficient of a layer. The gradient is cast back by the attributes then, times this number of any
    sign.
    """
    if isinstance(options.scale, torch.Tensor):
        tensors.check_scale(options.scale, options.caller)
    elif options.scale is not None and (tensors.transformed() or _is_traced(x, options)):
        # Within a transform the scale has to be a plain number. The op takes any: it multiplies by negative ones of
        # layers.
        device = x.device.index if x.is_cuda else None
        options = options._replace(scale=resolve_scale(options.scale, device, options.caller))
    seed, offset = (None, 0) if random is None else (_signed(random.seed), _signed(random.offset))
    arguments = (dst.name, *(attributes or tensors.DEFAULTS.values()), seed, offset)
    if slope is not None or _is_traced(x, options):
        return _cast_traced(x, dst, arguments, options, target, slope)
    keywords = _keywords(arguments) | {"scale": options.scale, "amax": options.amax}
    return _cast_eagerly(x, dst, keywords, options, target)


def times(x: torch.Tensor, dst: DType, options: Options) -> Any:
    """The cast of a tensor times ``options.scale``, a number of any sign."""
    arguments = (dst.name, *options[: len(tensors.DEFAULTS)], None, 0)
    return _cast_traced(x, dst, arguments, options, x.device, None)


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return value - _SIZE if value >= _SIZE // 2 else value


def _keywords(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The keywords of a cast of arrays, except `scale` and `amax`."""
    _, *attributes, seed, offset = arguments
    return tensors.named(tuple(attributes)) | {"seed": seed and seed % _SIZE, "offset": offset % _SIZE}


def _is_traced(x: torch.Tensor, options: Options) -> bool:
    """Whether to cast by an op: within torch.compile or a transform, if all that is given are tensors or numbers."""
    if not (torch.compiler.is_compiling() or tensors.transformed() or tensors.is_batched(x)):
        return False
    return (
        (options.scale is None or type(options.scale) in (float, int) or isinstance(options.scale, torch.Tensor))
        and (options.amax is None or isinstance(options.amax, torch.Tensor))
        and (options.out is None or isinstance(options.out, torch.Tensor))
    )


# ---- eager ----


@torch.compiler.disable  # type: ignore[untyped-decorator]  # It runs as it is, between two graphs.
def _cast_eagerly(x: torch.Tensor, dst: DType, keywords: dict[str, Any], options: Options, target: torch.device) -> Any:
    out, caller = options.out, options.caller
    if out is not None:
        tensors.check_out(x, dst, out, caller)
        tensors.fill(x, out, dst, keywords, False, caller=caller)
        return out
    shape = tensors.shape_of(x)
    tensors.check_pairs(shape, dst, caller)
    y = tensors.new(x, dst.name, caller=caller)
    tensors.fill(x, y, dst, keywords, not tensors.has_tensors(dst), caller=caller)
    [y] = gradients.attach_all([x], [y], options.scale, caller)
    return tensors.as_result(y.to(target), shape, dst, caller)


# ---- as ops ----


def _cast_traced(
    x: torch.Tensor,
    dst: DType,
    arguments: tuple[Any, ...],
    options: Options,
    target: torch.device,
    slope: float | None,
) -> Any:
    scale, amax, out, caller = options.scale, options.amax, options.out, options.caller
    number = None
    if not isinstance(scale, torch.Tensor) and scale is not None:
        number, scale = float(scale), None
    if out is not None:
        tensors.check_out(x, dst, out, caller)
        _op_out(x, out, scale, amax, *arguments, number, caller)
        return out
    shape = tensors.shape_of(x)
    tensors.check_pairs(shape, dst, caller)
    op = _TransformedCast.apply if tensors.transformed() else _op
    y, new_amax = op(x, scale, amax, *arguments, number, caller, slope)
    if amax is not None:
        amax.copy_(new_amax.detach())
    return tensors.as_result(y.to(target), shape, dst, caller)


class _TransformedCast(torch.autograd.Function):  # type: ignore[misc]  # As above.
    """The op with its gradient for the transforms of ``torch.func``, which ignore `register_autograd`.

    Not for torch.compile: torch before 2.15 cannot trace it.
    """

    generate_vmap_rule = True
    jvp = gradients.without_forward_mode()

    @staticmethod
    def forward(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        y, new_amax = _op(*arguments)
        return y, new_amax

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        _fused_setup(ctx, inputs, output)
        ctx.caller = inputs[-2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, _: Any) -> Any:
        dx, _ = _TransformedCast.apply(*_arguments_back(ctx, dy))
        return dx, *[None] * (len(ctx.needs_input_grad) - 1)


def _fused_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, scale, _, to, saturate, round_mode, opset, *_, number, caller, slope = inputs
    kind = tensors.dtype_of(x, caller)
    src = kind.name
    if kind.is_float and ctx.needs_input_grad[0]:
        gradients.warn(dtype(to), caller)
    if slope is None:
        ctx.back = (src, *tensors.DEFAULTS.values(), None, 0, number, caller, None)
    else:
        ctx.back = (src, saturate, round_mode, opset, *[None] * 3, 0, None if slope == 1 else slope, caller, None)
    ctx.scaled = scale is not None
    if scale is not None:
        ctx.save_for_backward(scale)


def _arguments_back(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    """The arguments of the op that casts the gradient back."""
    return dy, ctx.saved_tensors[0] if ctx.scaled else None, None, *ctx.back


def _fused_backward(ctx: Any, dy: torch.Tensor, _: Any) -> Any:
    dx, _ = _op(*_arguments_back(ctx, dy))
    return dx, *[None] * _INPUTS


def _run(x: torch.Tensor, scale: Any, amax: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    y, new_amax = _fake(x, scale, amax, *arguments)
    if amax is not None:
        new_amax.copy_(amax)
    dst = dtype(arguments[0])
    keywords = _all_keywords(scale, None if amax is None else new_amax, arguments)
    tensors.fill(x, y, dst, keywords, not tensors.has_tensors(dst), _function(keywords["scale"]), arguments[-2])
    return y, new_amax


def _function(scale: Any) -> Callable[[Any, DType, Options], Any]:
    """The casting function. Only the coefficient of a layer may be negative."""
    return array_times if isinstance(scale, float) and math.copysign(1, scale) < 0 else cast_with


def _run_out(x: torch.Tensor, out: torch.Tensor, scale: Any, amax: Any, *arguments: Any) -> None:
    keywords = _all_keywords(scale, amax, (*arguments, None))
    caller = arguments[-1]
    tensors.fill(x, out, dtype(arguments[0], caller=f"{caller}: to="), keywords, False, caller=caller)


def _all_keywords(scale: Any, amax: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    *arguments_of_cast, number, _, _ = arguments
    return _keywords(tuple(arguments_of_cast)) | {"scale": number if scale is None else scale, "amax": amax}


def _fake(x: torch.Tensor, scale: Any, amax: Any, to: str, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    y = tensors.new(x, to, *arguments[: len(tensors.DEFAULTS)], caller=arguments[-2])
    return y, x.new_empty(0, dtype=torch.float32) if amax is None else torch.empty_like(amax)


def _fused_batched(info: Any, dims: tuple[Any, ...], x: torch.Tensor, scale: Any, amax: Any, *arguments: Any) -> Any:
    """The result of a loop over the batch: each part gets the same random words, and an `amax` without a batch
    dimension is passed from one part to the next."""
    to, *_, seed, _, _, caller, _ = arguments
    tensors.check_batched(to, caller)
    along_x, along_scale, along_amax, *_ = dims
    if along_scale is along_amax is seed is None:
        return _op(x.movedim(along_x, 0), scale, amax, *arguments), (0, None)
    parts = []
    for i in range(info.batch_size):
        of_x, of_scale, of_amax = (
            one if along is None else one.select(along, i)
            for one, along in ((x, along_x), (scale, along_scale), (amax, along_amax))
        )
        parts.append(_op(of_x, of_scale, of_amax, *arguments))
        if along_amax is None and amax is not None:
            amax = parts[-1][1]
    kind = parts[0][0].dtype
    # Of 8-bit types torch can stack only its own integers.
    codes = torch.stack([y.view(torch.uint8) if kind.itemsize == 1 else y for y, _ in parts])
    new_amax = parts[-1][1] if along_amax is None else torch.stack([one for _, one in parts])
    return (codes.view(kind), new_amax), (0, None if along_amax is None else 0)


_op: Any = torch.library.custom_op(
    "gpucast::fused_cast",
    _run,
    mutates_args=(),
    schema=f"(Tensor x, Tensor? scale, Tensor? amax, {_FUSED_SCHEMA}, float? slope) -> (Tensor, Tensor)",
)
_op.register_fake(_fake)
_op.register_autograd(_fused_backward, setup_context=_fused_setup)
_op.register_vmap(_fused_batched)
_op_out: Any = torch.library.custom_op(
    "gpucast::fused_cast_out",
    _run_out,
    mutates_args=("out", "amax"),
    schema=f"(Tensor x, Tensor(a!) out, Tensor? scale, Tensor(b!)? amax, {_FUSED_SCHEMA}) -> ()",
)
_op_out.register_fake(lambda *arguments: None)
