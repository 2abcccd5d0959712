# SPDX-License-Identifier: Apache-2.0
"""Casts of host arrays that look like earlier ones: what `gpucast.casting.plan_cache.Plan.run` is for them.

They take what is most common and right at first sight. For all else, and all that is wrong, they do nothing and give
None: the checked path takes it, or raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import Operand, operand
from gpucast.arrays.overlap import shares_within
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.random import resolve_random
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.cpu import cast as host_cast
from gpucast.cpu import compiled
from gpucast.cpu import fused as host_fused
from gpucast.cpu import lanes as host

_FLOAT = np.dtype(np.float32)
#: The dtypes of arrays whose element, of any value, is a scale, and the largest number that is one.
_SCALES, _LARGEST = (_FLOAT, np.dtype(np.float64)), sys.float_info.max


def plain(rule: CastRule) -> compiled.Run:
    """``run(x, out)`` of native NumPy arrays, by compiled code if it is ready now."""
    tag, src_codes, dst_codes = rule.dst.numpy, rule.src.code_numpy, rule.dst.code_numpy
    is_astype, is_copy = host.is_astype(rule), host.is_copy(rule)

    def run(x: npt.NDArray[Any], out: Any) -> Any:
        if out is None and (is_copy or (is_astype and x.size <= host.SHORT)):
            return x.astype(tag)
        if out is None:
            # `empty` is the quicker of the two.
            out = np.empty(x.shape, tag) if x.flags.c_contiguous else np.empty_like(x, tag, "K", False)
        elif (
            type(out) is not np.ndarray
            or out.dtype is not tag
            or out.shape != x.shape
            or not (out.flags.carray or _is_sound(out))
            or np.may_share_memory(x, out)
        ):
            return None
        if is_copy:
            np.copyto(out, x)
        elif x.size:
            host.apply_codes(x.view(src_codes), rule, out.view(dst_codes))
        return out

    cast = compiled.READY.get(rule)
    return run if cast is None else cast.quicker(run)


def fused(source: Operand, rule: CastRule) -> Callable[[Any, Any, Any, Any, Any, Any], Any]:
    """``run(x, out, seed, offset, scale, amax)`` of arrays of the kind of `source`, PackedArrays among them."""
    packed, tag = source.packed, rule.dst.numpy
    to_packed = packed and rule.dst.packed
    rounding = STOCHASTIC if rule.rounding == STOCHASTIC else None

    def run(x: Any, out: Any, seed: Any, offset: Any, scale: Any, amax: Any) -> Any:
        try:
            random = resolve_random(rounding, seed, offset)
        except (TypeError, ValueError):
            return None
        data = x.data if packed else x
        # PackedArrays on a device are of the same class.
        if type(data) is not np.ndarray:
            return None
        if scale is not None:
            if type(scale) is np.ndarray and scale.size == 1 and scale.dtype in _SCALES:
                scale = scale.reshape(())[()]
            elif not (type(scale) in (float, int) and 0 <= scale <= _LARGEST):
                return None
            scale = float(scale)
        if amax is not None and not (
            type(amax) is np.ndarray
            and amax.dtype is _FLOAT
            and amax.size == 1
            and amax.flags.writeable
            and not np.may_share_memory(amax, data)
        ):
            return None
        if out is None:
            if packed:
                out = host_cast.empty_like(operand(x, rule.src), rule.dst).array
            else:
                out = np.empty_like(x, tag, "K", False)
        elif (
            to_packed
            or type(out) is not np.ndarray
            or out.dtype is not tag
            or out.shape != x.shape
            or not (out.flags.carray or _is_sound(out))
            or np.may_share_memory(data, out)
            or (amax is not None and np.may_share_memory(amax, out))
        ):
            return None
        host_fused.one_pass(x, rule, FusedInputs(scale, amax, random=random), out)
        return out

    return run


def _is_sound(out: npt.NDArray[Any]) -> bool:
    """Whether an array of any strides can be written, each element in a place of its own."""
    return out.flags.writeable and not shares_within(out.shape, out.strides, out.itemsize)
