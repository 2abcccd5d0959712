# SPDX-License-Identifier: Apache-2.0
"""Plain casts of tensors by the extension module, and copies. The custom op does the same, but takes longer than most
casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from gpucast import gpu
from gpucast.casting import plans
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule, Options, destination, resolve
from gpucast.host import loops
from gpucast.host.extension import MODULE
from gpucast.kernel.fused_kernel import cast_kernel
from gpucast.libraries.torch import tensors

_DEFAULT = Options()
#: ``way(x, out)``: the cast of a tensor that needs nothing but memory; None, nothing done, for others.
_Way = Callable[[Any, Any], Any]
_TORCH = (tensors.VIEW, tensors.STREAM, tensors.WATCHING, tensors.FORWARD_NAMES, tensors.written)


def cast(x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
    """The cast; None, nothing done, for calls that may need more, and without the module."""
    if MODULE is None or not tensors.VIEW or torch.compiler.is_compiling() or type(x) is not torch.Tensor:
        return None
    if type(to) not in (str, DType, torch.dtype) or not all(map(operator.is_, options._replace(out=None), _DEFAULT)):
        return None
    known = _ways(x.dtype, to)
    if known is None:
        return None
    rule, direct, checked = known
    y: torch.Tensor | None = checked(x, options.out)
    if y is not None:
        plans.keep(x, to, options, rule, direct)
    return y


@lru_cache(maxsize=1024)
def _ways(kind: Any, to: Any) -> tuple[CastRule, _Way, _Way] | None:
    """The rule for tensors of a dtype of torch, cast to what is asked for; the cast by the module alone, which looks at
    the tensors; and the same, once it has found the kernel of a device."""
    src, dst = tensors.BY_TORCH.get(kind), destination(to, "cast")
    if src is None or src.packed or dst not in tensors.TORCH_DTYPES or dst.packed:
        return None
    rule, made = resolve(src, dst), tensors.TORCH_DTYPES[dst]
    kernels: dict[int, Any] = {}
    plan = MODULE.plan(rule, True, None, src.numpy, dst.numpy, loops.plain(rule), kernels)
    direct = partial(MODULE.cast_tensor, plan, _TORCH, partial(torch.empty_like, dtype=made), made)

    def checked(x: Any, out: Any) -> Any:
        y = direct(x, out)
        if y is None and not (x.requires_grad or tensors.is_watched() or x.is_meta):
            device = tensors.device_of(x, "cast")
            # The checked path loads it.
            if device is not None and device not in kernels:
                kernel = gpu.driver.loaded(cast_kernel(rule), device)
                if kernel is not None:
                    kernels[device] = kernel
                    return direct(x, out)
        return y

    return rule, direct, checked


@torch.compiler.substitute_in_graph(plans.hit, skip_signature_check=True)  # type: ignore[untyped-decorator]
def _hit_in_graph(*call: Any) -> None:
    """A compiler that traces the call cannot look into the module's function, and needs no plan."""


plans.HITS[torch.Tensor] = plans.hit
# The kernels are those of the driver with which they were loaded.
gpu.ON_NEW_DRIVER.append(_ways.cache_clear)
