# SPDX-License-Identifier: Apache-2.0
"""Plain casts of tensors by the extension module, and copies. The custom op does the same, but takes longer than most
casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from gpucast import gpu
from gpucast.casting import plans
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule, Options, destination, resolve
from gpucast.host import loops
from gpucast.host.extension import MODULE
from gpucast.interop.torch import tensors

_DEFAULT = Options()


class _Pair(NamedTuple):
    rule: CastRule
    #: The results' dtype of torch.
    to: Any


def cast(x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
    """The cast; None, nothing done, for calls that may need more, and without the module."""
    if MODULE is None or not tensors.VIEW or torch.compiler.is_compiling() or type(x) is not torch.Tensor:
        return None
    if type(to) not in (str, DType, torch.dtype) or not all(map(operator.is_, options._replace(out=None), _DEFAULT)):
        return None
    pair = _pair(x.dtype, to)
    if pair is None:
        return None
    run = _run(pair)
    y: torch.Tensor | None = run(x, options.out)
    if y is not None:
        plans.keep(x, to, options, pair.rule, run)
    return y


@lru_cache(maxsize=1024)
def _pair(kind: Any, to: Any) -> _Pair | None:
    """The rule that casts tensors of a torch dtype as the options ask."""
    src, dst = tensors.BY_TORCH.get(kind), destination(to, "cast")
    if src is None or src.packed or dst not in tensors.TORCH_DTYPES or dst.packed:
        return None
    return _Pair(resolve(src, dst), tensors.TORCH_DTYPES[dst])


@lru_cache(maxsize=1024)
def _run(pair: _Pair) -> Callable[[Any, Any], Any]:
    """``run(x, out)`` of a plan: casts a tensor whose result needs only memory."""
    rule, kind = pair
    kernels: dict[int, Any] = {}
    plan = MODULE.plan(rule, True, None, rule.src.numpy, rule.dst.numpy, loops.plain(rule), kernels)
    # The module's function, and the arguments that all calls share.
    cast_tensor = partial(MODULE.cast_tensor, plan, tensors.VIEW, tensors.STREAM, partial(torch.empty_like, dtype=kind))

    def run(x: Any, out: Any) -> Any:
        if x.requires_grad or x.is_neg() or tensors.is_watched():
            return None
        # The module knows a tensor without memory by its address, which is the offset.
        if x.storage_offset() and not tensors.has_memory(x):
            return None
        if out is None:
            y = cast_tensor(x, None)
        elif (
            type(out) is not torch.Tensor
            or out.dtype is not kind
            or out.requires_grad
            or out.is_neg()
            or (out.storage_offset() and not tensors.has_memory(out))
        ):
            return None
        else:
            y = cast_tensor(x, out)
            if y is not None:
                tensors.written(out)
        if y is None and not x.is_meta:
            device = tensors.device_of(x, "cast")
            # The checked path loads it.
            if device is not None and device not in kernels:
                kernel = gpu.driver.loaded(rule, device)
                if kernel is not None:
                    kernels[device] = kernel
                    return run(x, out)
        return y

    return run


@torch.compiler.substitute_in_graph(plans.hit, skip_signature_check=True)  # type: ignore[untyped-decorator]
def _hit_in_graph(*call: Any) -> None:
    """A compiler that traces the call cannot look into the module's function, and needs no plan."""


plans.HITS[torch.Tensor] = plans.hit
# The kernels are those of the driver with which they were loaded.
gpu.ON_NEW_DRIVER.append(_run.cache_clear)
