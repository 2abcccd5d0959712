# SPDX-License-Identifier: Apache-2.0
"""A checked cast from host memory to host memory: numbers, text and packed arrays, plain or fused."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays.operand import Operand, operand, result_like
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule
from gpucast.host import cast_numbers, text_on_host


def apply(source: Operand, rule: CastRule, target: Operand | None = None, fused: FusedInputs | None = None) -> Operand:
    """Cast into `target`, which is returned, or into a new array of the source's kind. With a scale the rule is a
    `gpucast.casting.fused_options.fused_rule`."""
    if "string" in (rule.src.family, rule.dst.family):
        # All of it before the target is touched: a text that is no number leaves that as it was.
        texts = source.array.get() if source.packed else source.data
        convert = text_on_host.parse if rule.src.family == "string" else text_on_host.format
        result = operand(convert(texts, rule), rule.dst)
    else:
        # Packed elements, which have equal layouts if they share memory, are read before they are written.
        direct = target is not None and (source.packed or not np.may_share_memory(source.data, target.data))
        result = target if target is not None and direct else empty_like(source, rule.dst)
        cast_numbers.into(source.plain, rule, result.plain, fused)
    if target is None or result is target:
        return result
    target.data[...] = result.data
    return target


def empty_like(source: Operand, kind: DType) -> Operand:
    """A new array for the cast of `source` to a dtype, of the kind that the source is."""
    array: Any
    if not source.packed:
        array = np.empty_like(source.data, kind.numpy, "K", False)
    elif kind.packed:
        array = PackedArray(np.empty(kind.nbytes(source.size), np.uint8), kind, source.shape)
    else:
        array = np.empty(source.shape, kind.numpy)
    return result_like(source, array, kind)
