# SPDX-License-Identifier: Apache-2.0
"""Plain casts of CPU tensors by the compiled library. The custom op does the same, but takes longer than most casts."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from gpucast.core.dtypes import DType
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
    if x.requires_grad or not x.is_cpu or x.layout is not torch.strided or x.is_nested:
        return None
    pair = _pair(x.dtype, to)
    if pair is None or not x.is_contiguous() or x.is_neg():
        return None
    rule, itemsize, kind = pair
    size, address = x.numel(), x.data_ptr()
    found: Any = compiled.READY.get(rule) if size <= lanes.SHORT else compiled.find(rule, size * itemsize)
    # Without memory are tensors of zeros that torch keeps as such, and those whose storage was given back.
    if found is None or not address or address % itemsize or size == 0:
        return None
    y = torch.empty_like(x, dtype=kind)
    found.at(address, y.data_ptr(), size)
    return y


@lru_cache(maxsize=1024)
def _pair(kind: Any, to: Any) -> _Pair | None:
    """The rule for tensors of a dtype of torch, cast to what is asked for."""
    src, dst = tensors.BY_TORCH.get(kind), destination(to, "cast")
    if src is None or src.packed or dst not in tensors.TORCH_DTYPES or dst.packed:
        return None
    return _Pair(resolve(src, dst), src.code_numpy.itemsize, tensors.TORCH_DTYPES[dst])
