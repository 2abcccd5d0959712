# SPDX-License-Identifier: Apache-2.0
"""Tensors as a library: `gpucast.cast` by custom ops, by engines, or by plans of the extension module, which looks at
tensors itself; and the needs of `gpucast.cast_many`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from gpucast.arrays import libraries
from gpucast.arrays.array import Array
from gpucast.arrays.libraries import CastFunction, Lent, Library, compiler
from gpucast.arrays.packed import PackedArray
from gpucast.casting import engines, plans
from gpucast.casting.engine import Call
from gpucast.casting.list_plans import HOST_KINDS, HostKind
from gpucast.casting.plans import Kernels
from gpucast.core.checks import as_double, is_real
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE
from gpucast.core.fuse import Scaling, resolve_random, scaling_of
from gpucast.core.rule import CAST_VERSIONS, CastRule, Options, destination, resolve, rule_of
from gpucast.kernel import ON_NEW_DRIVER, devices, streams
from gpucast.kernel.fused_kernel import PLAIN, FusedOps
from gpucast.libraries.torch import gradients, op, tensors
from gpucast.libraries.torch.op import cast_out_op
from gpucast.libraries.torch.tensors import DEFAULTS, named


class TorchLibrary(Library):
    """Tensors of PyTorch."""

    batches = True

    take = staticmethod(tensors.take)
    check_scale = staticmethod(tensors.check_scale)
    check_constant = staticmethod(tensors.check_constant)
    from_packed = staticmethod(tensors.from_packed)
    untraced = staticmethod(gradients.untraced)
    attach = staticmethod(gradients.attach_all)

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
            keep_plan(x, to, options)
        return y

    def _cast_numbers(self, x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
        """The plain cast of a tensor that is no more than numbers to a new one; None for a type that torch lacks. The
        op does the same, and takes longer than the cast of many a tensor."""
        dst, src, caller = destination(to, options), tensors.BY_TORCH.get(x.dtype), options.caller
        if src is None or dst.packed or dst not in tensors.TORCH_DTYPES:
            return None
        source = Array.of(tensors.take(x, caller), src)
        rule = rule_of(src, dst, options)
        y = torch.empty_like(x, dtype=tensors.TORCH_DTYPES[dst])
        target = Array.of(tensors.view(y, dst, source.device, caller), dst)
        engines.of(source.device).run((Call(caller, source, rule, target=target),), self)
        keep_plan(x, to, options, rule)
        return y

    def _cast_with_node(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options) -> Any:
        """The cast of the numbers, by a plan if there is one, and a node. The op does the same, and takes ten times as
        long."""
        records, caller, numbers = torch.is_grad_enabled(), options.caller, x.detach()
        if records and options.out is not None:
            tensors.check_into(x, caller)
        if records and options.amax is not None:
            # It would be written first.
            tensors.check_gradient(x, destination(to, options), caller)
        y = cast(numbers, to, options)
        if y is numbers:
            return x
        if not records:
            return y
        if type(y) is not torch.Tensor:
            tensors.check_gradient(x, destination(to, options), caller)
            return y
        differentiates = x.is_floating_point() and y.is_floating_point()
        return gradients.attach(x, y, options.scale, caller) if differentiates else y

    def _cast(self, cast: CastFunction, x: torch.Tensor, to: Any, options: Options, slope: float | None = None) -> Any:
        """The cast by an op. `slope`: the coefficient of a layer, see `op.fused_cast`."""
        attributes: tuple[Any, ...] = options[: len(DEFAULTS)]
        device, out, copy, caller = options.device, options.out, options.copy, options.caller
        dst = destination(to, options)
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
            resolve(src, dst, options._replace(scale=None))
            saturate, round_mode, opset, rounding, overflow = attributes
            # Custom ops take only Python's own types.
            attributes = bool(saturate), round_mode, None if opset is None else int(opset), rounding, overflow
        target = _target_device(x, device, caller)
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
        dst = destination(to, options)
        resolve(tensors.dtype_of(x, options.caller), dst, options._replace(scale=None))
        return op.times(x, dst, options)

    def shape(self, x: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensors.shape_of(x))

    def from_array(self, x: Any) -> Any:
        return tensors.from_array(x)

    placed = staticmethod(tensors.placed)
    without_gradients = staticmethod(tensors.without_gradients)

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
        return tensors.transformed() or tensors.is_batched(x)

    def empty_like(self, x: torch.Tensor, dst: DType, caller: str) -> tuple[Any, Any]:
        shape = tensors.shape_of(x)
        tensors.check_gradient(x, dst, caller)
        tensors.check_pairs(shape, dst, caller)
        y = tensors.new(x, dst.name, caller=caller)
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
    if isinstance(out, torch.Tensor) and not tensors.is_plain(x):
        cast_out_op(x, out, caller, dst.name, *attributes)
    else:
        tensors.fill(x, out, dst, named(attributes), False, caller=caller)
    return out


LIBRARY = TorchLibrary()
libraries.enter("torch", torch, LIBRARY)


# ---- plans ----

_FLOAT = dtype("FLOAT")
_ASKED = (tensors.VIEW, tensors.STREAM, tensors.WATCHING, tensors.FORWARD_NAMES, tensors.written)


def keep_plan(x: torch.Tensor, to: Any, options: Options, rule: CastRule | None = None) -> None:
    """Keep the plan of a cast that has been done, if there may be one; with the kernel of its device, if that is
    loaded. `rule`: that of a cast which nothing of torch watched."""
    if MODULE is None or not tensors.VIEW or type(x) is not torch.Tensor or type(to) not in (str, DType, torch.dtype):
        return
    # Such as no plan is run for.
    if x.requires_grad or x.is_meta or (x.is_cuda and not x.is_contiguous()):
        return
    if rule is None:
        src = tensors.BY_TORCH.get(x.dtype)
        if src is None or tensors.is_watched():
            return
        rule = resolve(src, destination(to, options), options)
    if rule.src.packed or rule.dst.packed or rule.dst not in tensors.TORCH_DTYPES:
        return
    scaled, amax, scaling = options.scale is not None, options.amax is not None, _scaling(options.scale)
    if scaling is None:
        return
    found = _plan(rule, scaled or amax or options.seed is not None, scaled, amax)
    if found is None:
        return
    plan, kernels = found
    ops = FusedOps(scaling, amax) if scaled or amax else PLAIN
    engines.of(tensors.device_of(x, "cast")).add_kernel(kernels, rule, ops)
    plans.keep(x, to, options, rule, plan)


@lru_cache(maxsize=4096)
def _plan(rule: CastRule, fuses: bool, scaled: bool, amax: bool) -> tuple[Any, Kernels] | None:
    """A plan for each kind of kernel, and its kernels."""
    works = plans.works(rule, fuses, scaled)
    if works is None:
        return None
    kernels = Kernels.of(fuses)
    return _made(rule, works, kernels), kernels


def _made(rule: CastRule, works: bytes, kernels: Kernels) -> Any:
    made = tensors.TORCH_DTYPES[rule.dst]
    empty = partial(torch.empty_like, dtype=made)
    return plans.make("tensors", None, empty, rule, works, *kernels, _ASKED, made)


def _of_works(rule: CastRule, works: bytes) -> Any:
    """The plan of tensors of the host by other works; None where there is none."""
    return _made(rule, works, Kernels.of(False)) if rule.dst in tensors.TORCH_DTYPES else None


def _scaling(scale: Any) -> Scaling | None:
    """The kind of a scale that a call had; None for an object that does not tell its dtype."""
    if scale is None or is_real(scale):
        return scaling_of(None if scale is None else as_double(scale))
    if isinstance(scale, np.ndarray):
        return scaling_of(float(scale.item()))
    # One on a device is not read.
    kind = getattr(scale, "dtype", None)
    return None if kind is None else "narrow" if dtype(kind) is _FLOAT else "wide"


def _of_rule(rule: CastRule, fuses: bool, scaled: bool) -> Any:
    """The plan of tensors of the host; None where there is none."""
    if rule.dst not in tensors.TORCH_DTYPES or rule.src.packed or rule.dst.packed:
        return None
    found = _plan(rule, fuses, scaled, False)
    return None if found is None else found[0]


if MODULE is not None and tensors.VIEW:
    HOST_KINDS[torch.Tensor] = HostKind(_of_rule, _of_works, _ASKED)


def _hit_in_graph(*call: Any) -> None:
    """A compiler that traces the call cannot look into the module's function, and needs no plan."""


plans.for_each_hit(lambda hit: torch.compiler.substitute_in_graph(hit, skip_signature_check=True)(_hit_in_graph))

# The kernels are those of the driver with which they were loaded.
ON_NEW_DRIVER.append(_plan.cache_clear)
