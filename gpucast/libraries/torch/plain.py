# SPDX-License-Identifier: Apache-2.0
"""Casts of tensors by the extension module, which looks at them itself. The custom op does the same, but takes longer
than most casts."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch

from gpucast.casting import plans
from gpucast.casting.cuda_plans import Kernels
from gpucast.casting.list_plans import HOST_KINDS, HostKind
from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.core.fuse import scaling_of
from gpucast.core.rule import CastRule, Options, destination, resolve
from gpucast.kernel import ON_NEW_DRIVER
from gpucast.kernel.fused_kernel import FusedOps
from gpucast.libraries.torch import tensors

_LIBRARY = (tensors.VIEW, tensors.STREAM, tensors.WATCHING, tensors.FORWARD_NAMES, tensors.written)


def keep(x: torch.Tensor, to: Any, options: Options, rule: CastRule | None = None) -> None:
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
        rule = resolve(src, destination(to, "cast"), options)
    if rule.src.packed or rule.dst.packed or rule.dst not in tensors.TORCH_DTYPES:
        return
    scaled, amax = options.scale is not None, options.amax is not None
    found = _plan(rule, scaled or amax or options.seed is not None, scaled, amax)
    if found is None:
        return
    plan, kernels = found
    device = tensors.device_of(x, "cast")
    if device is not None:
        kernels.add(rule, FusedOps(_scaling(options.scale), amax), device)
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
    return plans.make("tensors", None, empty, rule, works, *kernels, _LIBRARY, made)


def _of_works(rule: CastRule, works: bytes) -> Any:
    """The plan of tensors of the host by other works; None where there is none."""
    return _made(rule, works, Kernels.of(False)) if rule.dst in tensors.TORCH_DTYPES else None


def _scaling(scale: Any) -> Any:
    if isinstance(scale, torch.Tensor):
        return "narrow" if scale.dtype is torch.float32 else "wide"
    return scaling_of(None if scale is None else float(scale))


def _of_rule(rule: CastRule, fuses: bool, scaled: bool) -> Any:
    """The plan of tensors of the host; None where there is none."""
    if rule.dst not in tensors.TORCH_DTYPES or rule.src.packed or rule.dst.packed:
        return None
    found = _plan(rule, fuses, scaled, False)
    return None if found is None else found[0]


if MODULE is not None and tensors.VIEW:
    HOST_KINDS[torch.Tensor] = HostKind(_of_rule, _of_works, _LIBRARY)


def _hit_in_graph(*call: Any) -> None:
    """A compiler that traces the call cannot look into the module's function, and needs no plan."""


plans.for_each_hit(lambda hit: torch.compiler.substitute_in_graph(hit, skip_signature_check=True)(_hit_in_graph))

# The kernels are those of the driver with which they were loaded.
ON_NEW_DRIVER.append(_plan.cache_clear)
