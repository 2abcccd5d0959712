# SPDX-License-Identifier: Apache-2.0
"""Plain casts of CPU tensors by the extension module, and copies. The custom op does the same, but takes longer than
most casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from gpucast.casting import plans
from gpucast.core.dtypes import DType
from gpucast.core.options import Options, destination
from gpucast.core.rule import CastRule, resolve
from gpucast.host import loops
from gpucast.host.module import MODULE
from gpucast.interop.torch import tensors

_DEFAULT = Options()


class _Pair(NamedTuple):
    rule: CastRule
    #: The results' dtype of torch.
    to: Any


def cast(x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
    """The cast; None, nothing done, for calls that may need more, and without the module."""
    if MODULE is None or tensors.VIEW is None or torch.compiler.is_compiling() or type(x) is not torch.Tensor:
        return None
    if type(to) not in (str, DType, torch.dtype) or not all(map(operator.is_, options, _DEFAULT)):
        return None
    pair = _pair(x.dtype, to)
    if pair is None:
        return None
    run = _run(pair)
    y: torch.Tensor | None = run(x, None)
    if y is not None:
        plans.keep(x, to, options, pair.rule, run)
    return y


@lru_cache(maxsize=1024)
def _pair(kind: Any, to: Any) -> _Pair | None:
    """The rule for tensors of a dtype of torch, cast to what is asked for."""
    src, dst = tensors.BY_TORCH.get(kind), destination(to, "cast")
    if src is None or src.packed or dst not in tensors.TORCH_DTYPES or dst.packed:
        return None
    return _Pair(resolve(src, dst), tensors.TORCH_DTYPES[dst])


@lru_cache(maxsize=1024)
def _run(pair: _Pair) -> Callable[[Any, Any], Any]:
    """``run(x, out)`` of a plan: the cast of a tensor that needs nothing but memory."""
    rule = pair.rule
    plan = MODULE.plan(rule, True, None, rule.src.numpy, rule.dst.numpy, loops.plain(rule))
    cast_tensor, view, empty_like = MODULE.cast_tensor, tensors.VIEW, partial(torch.empty_like, dtype=pair.to)

    def run(x: Any, out: Any) -> Any:
        if out is not None or x.requires_grad or x.is_neg() or tensors.is_watched():
            return None
        # The module knows a tensor without memory by its address, which is the offset.
        if x.storage_offset() and not tensors.has_memory(x):
            return None
        return cast_tensor(plan, view, empty_like, x)

    return run


def _hit(*call: Any) -> Any:
    # A compiler that traces the call must not meet a function that it cannot look into.
    return None if torch.compiler.is_compiling() else plans.hit(*call)


plans.HITS[torch.Tensor] = _hit
