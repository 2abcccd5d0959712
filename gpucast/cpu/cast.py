# SPDX-License-Identifier: Apache-2.0
"""A checked cast from host memory to host memory: numbers, strings and packed arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, Rule
from gpucast.cpu import lanes as host
from gpucast.cpu import stochastic as host_stochastic
from gpucast.cpu import text as host_strings
from gpucast.cpu.chunks import packed_pairs


def apply(x: Any, rule: Rule, out: Any = None, random: Random | None = None) -> Any:
    """Cast a NumPy array or a PackedArray over one, into `out` or a new array of the same kind.

    `random` is for stochastic rounding, and only for that.
    """
    # asarray, because subclasses such as np.matrix change what reshaping and assignment mean.
    target = np.asarray(out) if isinstance(out, np.ndarray) else out
    result = (_packed if isinstance(x, PackedArray) else _array)(x, rule, target, random)
    return result if out is None else out


def _into(x: npt.NDArray[Any], rule: Rule, out: npt.NDArray[Any], random: Random | None) -> None:
    if rule.rounding == STOCHASTIC:
        assert random is not None, "who asks for this rounding has to say which random bits"
        host_stochastic.apply(x, rule, out, random)
    else:
        host.apply(x, rule, out)


def _array(x: npt.NDArray[Any], rule: Rule, out: npt.NDArray[Any] | None, random: Random | None) -> npt.NDArray[Any]:
    if "string" in (rule.src.family, rule.dst.family):
        # All of it before `out` is touched: a text that is no number leaves `out` as it was.
        result = (host_strings.parse if rule.src.family == "string" else host_strings.format)(x, rule)
    elif out is None or np.may_share_memory(x, out):
        result = empty_like(x, rule.dst)
        _into(x, rule, result, random)
    else:
        _into(x, rule, out, random)
        return out
    if out is None:
        return result
    out[...] = result
    return out


def _packed(x: PackedArray, rule: Rule, out: Any, random: Random | None) -> Any:
    if out is None:
        out = empty_like(x, rule.dst)
    if rule.dst.family == "string":
        out[...] = host_strings.format(x.get(), rule)
        return out
    start = 0
    for some, room in packed_pairs(x, rule.dst, out):
        _into(some, rule, room, random and random._replace(offset=random.offset + start))
        start += some.size
    return out


def empty_like(x: Any, row: DType) -> Any:
    """A new array for the cast of `x` to a dtype, of the kind that `x` is."""
    if not isinstance(x, PackedArray):
        return np.empty_like(x, dtype=row.numpy, order="K", subok=False)
    if not row.packed:
        return np.empty(x.shape, row.numpy)
    return PackedArray(np.empty(row.nbytes(x.size), np.uint8), row, x.shape)


def short_way(rule: Rule) -> Callable[[Any, Any], Any]:
    """The `gpucast.casting.plan_cache.Plan.run` of native NumPy arrays. It leaves an `out` that may not fit to the
    whole path."""
    tag = rule.dst.numpy

    def run(x: npt.NDArray[Any], out: Any) -> Any:
        if out is None:
            out = np.empty_like(x, tag, "K", False)
        elif (
            type(out) is not np.ndarray
            or out.dtype is not tag
            or out.shape != x.shape
            or not out.flags.carray
            or np.may_share_memory(x, out)
        ):
            return None
        host.apply(x, rule, out)
        return out

    return run
