# SPDX-License-Identifier: Apache-2.0
"""A checked cast from host memory to host memory: numbers, strings and packed arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.bitpacking import pack_codes, unpack_codes
from gpucast.arrays.packed import PackedArray
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, Rule
from gpucast.cpu import lanes as host
from gpucast.cpu import stochastic as host_stochastic
from gpucast.cpu import text as host_strings

#: Elements of a PackedArray that are unpacked at a time: whole bytes of every layout, and few enough for the cache.
_CHUNK = 1 << 16


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
        result = np.empty_like(x, dtype=rule.dst.numpy, order="K", subok=False)
        _into(x, rule, result, random)
    else:
        _into(x, rule, out, random)
        return out
    if out is None:
        return result
    out[...] = result
    return out


def _packed(x: PackedArray, rule: Rule, out: Any, random: Random | None) -> Any:
    src, dst = rule.src, rule.dst
    if out is None:
        whole = np.empty(dst.nbytes(x.size), np.uint8) if dst.packed else np.empty(x.shape, dst.numpy)
        out = PackedArray(whole, dst, x.shape) if dst.packed else whole
    if dst.family == "string":
        out[...] = host_strings.format(x.get(), rule)
        return out
    # In place (equal layouts) each chunk is unpacked before it is written.
    flat = out.data if dst.packed else out.reshape(-1) if out.flags.c_contiguous else np.empty(x.size, dst.numpy)
    for start in range(0, x.size, _CHUNK):
        count = min(_CHUNK, x.size - start)
        first = src.nbytes(start)
        codes = unpack_codes(x.data[first : first + src.nbytes(count)], src.bits, count).view(src.numpy)
        part = random and random._replace(offset=random.offset + start)
        if dst.packed:
            first = dst.nbytes(start)
            result = np.empty(count, dst.numpy)
            _into(codes, rule, result, part)
            flat[first : first + dst.nbytes(count)] = pack_codes(result.view(np.uint8), dst.bits)
        else:
            _into(codes, rule, flat[start : start + count], part)
    if not dst.packed and not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)
    return out


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
