# SPDX-License-Identifier: Apache-2.0
"""Plain casts of CPU tensors: by the compiled library, and copies. The custom op does the same, but takes longer than
most casts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from gpucast.casting import plan_cache
from gpucast.casting.plan_cache import Plan
from gpucast.core.dtypes import DType, dtype
from gpucast.core.options import Options, destination
from gpucast.core.rule import CastRule, resolve
from gpucast.cpu import compiled, lanes
from gpucast.interop.torch import tensors

_DEFAULT = Options()


class _Pair(NamedTuple):
    rule: CastRule
    #: Bytes of an element of the sources.
    itemsize: int
    #: The results' dtype of torch.
    to: Any


def cast(x: torch.Tensor, to: Any, options: Options) -> torch.Tensor | None:
    """The cast; None, nothing done, for calls that may need more, and without the library."""
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or type(to) not in (str, DType, torch.dtype):
        return None
    if not all(map(operator.is_, options, _DEFAULT)) or tensors.is_watched():
        return None
    if x.requires_grad or not _has_memory(x):
        return None
    pair = _pair(x.dtype, to)
    if pair is None or not x.is_contiguous() or x.is_neg():
        return None
    rule, itemsize, kind = pair
    size, address = x.numel(), x.data_ptr()
    if address % itemsize or size == 0:
        return None
    quick = _copy(rule)
    if quick is not None:
        y = quick(x)
    else:
        found: Any = compiled.READY.get(rule) if size <= lanes.SHORT else compiled.find(rule, size * itemsize)
        if found is None:
            return None
        y = torch.empty_like(x, dtype=kind)
        found.at(address, y.data_ptr(), size)
        if tensors.VIEW is not None:
            quick = found.of_tensors(tensors.VIEW, partial(torch.empty_like, dtype=kind))
    if quick is not None:
        plan_cache.keep_simple((torch.Tensor, x.dtype, type(to), to), Plan(rule, _run(quick)))
    return y


@lru_cache(maxsize=1024)
def _pair(kind: Any, to: Any) -> _Pair | None:
    """The rule for tensors of a dtype of torch, cast to what is asked for."""
    src, dst = tensors.BY_TORCH.get(kind), destination(to, "cast")
    if src is None or src.packed or dst not in tensors.TORCH_DTYPES or dst.packed:
        return None
    if src is dst and src.family == "bool":
        # Its bytes may be others than 0 and 1.
        src = dtype("UINT8")
    return _Pair(resolve(src, dst), src.code_numpy.itemsize, tensors.TORCH_DTYPES[dst])


def _has_memory(x: torch.Tensor) -> bool:
    """Whether a tensor is strided memory of the host."""
    return x.is_cpu and x.layout is torch.strided and not x.is_nested and tensors.has_memory(x)


def _copy(rule: CastRule) -> Callable[[Any], Any] | None:
    """The cast of a type to itself; None for other rules."""
    return (lambda x: x.clone() if _has_memory(x) else None) if lanes.is_copy(rule) else None


def _run(quick: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """``run(x, out)`` of a plan, by a cast of tensors that need nothing but memory."""

    def run(x: Any, out: Any) -> Any:
        if out is not None or x.requires_grad or x.is_neg() or tensors.is_watched():
            return None
        # Compiled code knows a tensor without memory by its address, which is the offset.
        return None if x.storage_offset() and not tensors.has_memory(x) else quick(x)

    return run


def _find(key: tuple[Any, ...]) -> Plan | None:
    return None if torch.compiler.is_compiling() else plan_cache.SIMPLE.get(key)


plan_cache.FIND[torch.Tensor] = _find
