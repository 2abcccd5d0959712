# SPDX-License-Identifier: Apache-2.0
"""A checked cast from host memory to host memory: numbers, strings and packed arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpucast.arrays.operand import Operand, operand, result_like
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.cpu import lanes as host
from gpucast.cpu import stochastic as host_stochastic
from gpucast.cpu import text as host_strings
from gpucast.cpu.chunks import packed_pairs


def apply(source: Operand, rule: CastRule, target: Operand | None = None, random: Random | None = None) -> Operand:
    """Cast into `target`, which is returned, or into a new array of the source's kind.

    `random` is for stochastic rounding, and only for that.
    """
    if "string" in (rule.src.family, rule.dst.family):
        # All of it before the target is touched: a text that is no number leaves that as it was.
        texts = source.array.get() if source.packed else source.data
        convert = host_strings.parse if rule.src.family == "string" else host_strings.format
        result = operand(convert(texts, rule), rule.dst)
    else:
        # The chunks of packed arrays, which have equal layouts if they share memory, are read before they are written.
        direct = target is not None and (source.packed or not np.may_share_memory(source.data, target.data))
        result = target if target is not None and direct else empty_like(source, rule.dst)
        into(source.plain, rule, result.plain, random)
    if target is None or result is target:
        return result
    target.data[...] = result.data
    return target


def into(x: Any, rule: CastRule, out: Any, random: Random | None = None) -> None:
    """Cast the numbers of a NumPy array or a PackedArray over one into all of an array that does not overlap it."""
    if isinstance(x, PackedArray):
        start = 0
        for codes, results in packed_pairs(x, rule.dst, out):
            into(codes, rule, results, random and random._replace(offset=random.offset + start))
            start += codes.size
    elif rule.rounding == STOCHASTIC:
        assert random is not None, "a caller that asks for this rounding has to say which random bits"
        host_stochastic.apply(x, rule, out, random)
    else:
        host.apply(x, rule, out)


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
