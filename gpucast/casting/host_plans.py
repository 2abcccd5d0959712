# SPDX-License-Identifier: Apache-2.0
"""Fused casts of NumPy arrays that look like earlier ones. The extension module runs plain ones by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import shares_within
from gpucast.core.fused_ops import FusedInputs, resolve_random
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.host import cast_numbers

_FLOAT = np.dtype(np.float32)
#: The dtypes of arrays whose element, of any value, is a scale, and the largest number that is one.
_SCALES, _LARGEST = (_FLOAT, np.dtype(np.float64)), sys.float_info.max


def fused(rule: CastRule) -> Callable[[Any, Any, Any, Any, Any, Any], Any]:
    """``run(x, out, seed, offset, scale, amax)`` of a plan (`gpucast.casting.plans.keep`)."""
    tag = rule.dst.numpy
    rounding = STOCHASTIC if rule.rounding == STOCHASTIC else None

    def run(x: Any, out: Any, seed: Any, offset: Any, scale: Any, amax: Any) -> Any:
        try:
            random = resolve_random(rounding, seed, offset)
        except (TypeError, ValueError):
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
            and not np.may_share_memory(amax, x)
        ):
            return None
        if out is None:
            out = np.empty_like(x, tag, "K", False)
        elif (
            type(out) is not np.ndarray
            or out.dtype is not tag
            or out.shape != x.shape
            or not (out.flags.carray or _is_sound(out))
            or np.may_share_memory(x, out)
            or (amax is not None and np.may_share_memory(amax, out))
        ):
            return None
        cast_numbers.into(x, rule, out, FusedInputs(scale, amax, random=random))
        return out

    return run


def _is_sound(out: npt.NDArray[Any]) -> bool:
    """Whether an array of any strides can be written, each element in a place of its own."""
    return out.flags.writeable and not shares_within(out.shape, out.strides, out.itemsize)
