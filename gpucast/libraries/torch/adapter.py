# SPDX-License-Identifier: Apache-2.0
"""The adapter of tensors: `gpucast.cast` as custom ops, and the needs of `gpucast.cast_many`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from gpucast.arrays.array import Array
from gpucast.arrays.libraries import LOADED, CastFunction, Lent, Library, compiler
from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines
from gpucast.casting.engine import Call
from gpucast.core.dtypes import DType
from gpucast.core.fuse import resolve_random
from gpucast.core.rule import CAST_VERSIONS, Options, destination, rule_of
from gpucast.kernel import devices, streams
from gpucast.libraries.torch import gradients, op, plain, tensor_batches, tensors
from gpucast.libraries.torch.op import cast_out_op
from gpucast.libraries.torch.tensors import DEFAULTS, named


class TorchLibrary(Library):
    """Tensors of PyTorch."""

    batches = True

    take = staticmethod(tensors.take)
    check_scale = staticmethod(tensors.check_scale)
    check_into = staticmethod(tensors.check_into)
    check_constant = staticmethod(tensors.check_constant)
    from_packed = staticmethod(tensors.from_packed)
    untraced = staticmethod(tensor_batches.untraced)
    attach = staticmethod(tensor_batches.attach)

    def cast(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options) -> Any:
        if options.device is None and tensors.is_plain(x):
            if x.requires_grad:
                return self._cast_with_node(cast, x, to, options)
            if options.out is None and options.copy is True and not options.fuses:
                y = self._cast_numbers(x, to, options)
                if y is not None:
                    return y
        y = self._cast(cast, x, to, options)
        if not torch.compiler.is_compiling():
            plain.keep(x, to, options)
        return y

    def _cast_numbers(self, x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
        """The plain cast of a tensor that is no more than numbers to a new one; None for a type that torch lacks. The
        op does the same, and takes longer than the cast of many a tensor."""
        dst, src, caller = destination(to, options.caller), tensors.BY_TORCH.get(x.dtype), options.caller
        if src is None or dst.packed or dst not in tensors.TORCH_DTYPES:
            return None
        source = Array.of(tensors.take(x, caller), src)
        rule = rule_of(src, dst, options)
        engine = engines.of(source.device)
        engine.require(caller)
        y = torch.empty_like(x, dtype=tensors.TORCH_DTYPES[dst])
        target = Array.of(tensors.view(y, dst, source.device, caller), dst)
        with engine.using(engine.stream(self)):
            engine.run((Call(caller, source, rule, target=target),))
        plain.keep(x, to, options, rule)
        return y

    def _cast_with_node(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options) -> Any:
        """The cast of the numbers, by a plan if there is one, and a node. The op does the same, and takes ten times as
        long."""
        records, caller, numbers = torch.is_grad_enabled(), options.caller, x.detach()
        if records and options.out is not None:
            tensors.check_into(x, caller)
        y = cast(numbers, to, options)
        if y is numbers:
            return x
        if not records:
            return y
        if type(y) is not torch.Tensor:
            tensors.check_gradient(x, destination(to, caller), caller)
            return y
        differentiates = x.is_floating_point() and y.is_floating_point()
        return gradients.attach(x, y, options.scale, caller) if differentiates else y

    def _cast(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options, slope: float | None = None) -> Any:
        """The cast by an op. `slope`: the coefficient of a layer, see `op.fused_cast`."""
        attributes: tuple[Any, ...] = options[: len(DEFAULTS)]
        device, out, copy, caller = options.device, options.out, options.copy, options.caller
        dst = destination(to, caller)
        src = tensors.dtype_of(x, caller)
        tensors.check_gradient(x, dst, caller)
        is_tensor = tensors.has_tensors(dst) and (out is None or isinstance(out, torch.Tensor))
        if not is_tensor and compiler() is not None:
            # Only tensors are part of a graph.
            return self.untraced(self.cast, cast, x, to, options)
        if dst.family == "string":
            with streams.visit(x, out):
                return cast(tensors.take(x, caller), dst, options)
        if not isinstance(copy, (bool, np.bool_)):
            raise TypeError(f"{caller}: copy={copy!r} must be True or False")
        if options.versions is CAST_VERSIONS and all(map(operator.is_, attributes, DEFAULTS.values())):
            attributes = ()
        else:
            tensors.check_attributes(src, dst, attributes, options.versions, caller)
            saturate, round_mode, opset, rounding, overflow = attributes
            # Custom ops take only Python's own types.
            attributes = bool(saturate), round_mode, None if opset is None else int(opset), rounding, overflow
        target = x.device if device is None else _target_device(x, device, caller)
        random = resolve_random(options.rounding, options.seed, options.offset, caller)
        is_fused = random is not None or options.scale is not None or options.amax is not None or slope is not None
        if is_fused or tensors.transformed():
            return op.fused_cast(x, dst, attributes, random, options, target, slope)
        if out is not None:
            return _cast_into(x if target == x.device else x.to(target), dst, attributes, out, caller)
        shape = tensors.shape_of(x)
        tensors.check_pairs(shape, dst, caller)
        if target != x.device and not 0 < dst.bits < src.bits:
            x = x.to(target)
        # Codes of other packed types and of BOOL, a byte each, may have bits beyond their own; pairs have none.
        is_clean = x.dtype is tensors.PAIRS or not (src.packed or src.family == "bool")
        if not copy and src is dst and target == x.device and is_clean:
            return x
        y = op.plain_cast(x, dst, attributes)
        if target != x.device:
            y = y.to(target)
        return tensors.as_result(y, shape, dst, caller)

    def cast_layer(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options, coefficient: float) -> Any:
        if x.requires_grad or tensors.transformed() or torch.compiler.is_compiling():
            return self._cast(cast, x, to, options, coefficient)
        return cast(x, to, options)

    def cast_times(self, times: CastFunction, x: torch.Tensor, to: Any, options: Options) -> Any:
        caller = options.caller
        src, dst = tensors.dtype_of(x, caller), destination(to, caller)
        tensors.check_attributes(src, dst, options[: len(DEFAULTS)], options.versions, caller)
        return op.times(x, dst, options)

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensors.shape_of(x))

    def from_array(self, x: Any) -> Any:
        return tensors.from_array(x)

    placed = staticmethod(tensors.placed)

    def written(self, arrays: Sequence[Any]) -> None:
        tensors.written([x for x in arrays if isinstance(x, torch.Tensor)])

    def empty_all(self, arrays: Sequence[torch.Tensor], dst: DType) -> list[torch.Tensor]:
        return list(map(partial(torch.empty_like, dtype=tensors.TORCH_DTYPES[dst]), arrays))

    def like(self, x: torch.Tensor) -> Callable[[], Any] | None:
        if type(x) is not torch.Tensor or not x.is_cpu:
            return None
        # Of one element, so that no memory is kept; the arguments of `empty` take twice as long.
        like = torch.empty((), dtype=x.dtype, device="cpu").expand(x.shape)
        return partial(torch.empty_like, like, memory_format=torch.contiguous_format)

    def stream(self, device: int) -> int:
        return tensors.stream(device)

    def lent(self, x: torch.Tensor) -> Lent | None:
        try:
            index = tensors.device_of(x, "")
            tensors.address(x)
        except (TypeError, RuntimeError):  # `take` tells what is wrong.
            return None
        return None if index is None else Lent(index, tensors.stream(index))

    def is_transforming(self, x: torch.Tensor) -> bool:
        return tensors.transformed()

    def empty_like(self, x: torch.Tensor, dst: DType, caller: str) -> tuple[Any, Any]:
        shape = tensors.shape_of(x)
        tensors.check_pairs(shape, dst, caller)
        y = tensors.new(x, dst.name)
        array = tensors.take(y, caller, writing=True)
        if tensors.has_tensors(dst):
            return y, array
        return tensors.as_result(y, shape, dst, caller), PackedArray(array, dst, tuple(shape))


def _target_device(x: torch.Tensor, device: Any, caller: str) -> torch.device:
    """The device of the result."""
    target = devices.parse(device, caller)
    if target is None:
        return x.device
    return torch.device("cpu") if target == "cpu" else torch.device("cuda", devices.index(target, caller))


def _cast_into(x: torch.Tensor, dst: DType, attributes: tuple[Any, ...], out: Any, caller: str) -> Any:
    tensors.check_out(x, dst, out, caller)
    if isinstance(out, torch.Tensor):
        cast_out_op(x, out, dst.name, *attributes)
    else:
        tensors.fill(x, out, dst, named(attributes), False, caller=caller)
    return out


ADAPTER = TorchLibrary()
LOADED["torch"] = torch
