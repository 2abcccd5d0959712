# SPDX-License-Identifier: Apache-2.0
"""Fused casts on a device that look like earlier ones: what `gpucast.gpu.cast.short_way` is for plain casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.codegen.fused import FusedArguments, FusedOps
from gpucast.codegen.spec import CastSpec
from gpucast.core.fused_ops import Scaling, scaling_of
from gpucast.core.random import Random
from gpucast.core.rule import Rule
from gpucast.gpu import cast as device_cast
from gpucast.gpu import driver as launch

_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


def short_way(x: Any, rule: Rule) -> Callable[[Any, Any, Random | None, Any, Any], Any]:
    """``run(x, out, random, scale, amax)`` of the fused casts of arrays of x's kind, a CuPy array: `random` is checked.

    It takes contiguous arrays on the current device where bounds tell that what is written is apart from all else; for
    the rest, and all that is wrong, it does nothing and gives None. With `out` nothing but the launch asks the driver.
    """
    driver = launch.driver()
    current, capturing, row, tag = driver.current, driver.capturing, rule.dst, rule.dst.numpy
    array: Any = namespace(x).ndarray
    unpacked = rule.src.packed
    kernels: dict[tuple[int, Scaling, bool], launch.Kernel] = {}

    def single(value: Any, kind: np.dtype[Any], device: int) -> bool:
        return (
            type(value) is array
            and value.dtype is kind
            and value.size == 1
            and value.data.device_id == device
            and not value.data.ptr % kind.itemsize
        )

    def run(x: Any, out: Any, random: Random | None, scale: Any, amax: Any) -> Any:
        n = x.size
        if type(x) is not array or not x._c_contiguous or not n:
            return None
        device, begin = x.data.device_id, x.data.ptr
        if current() != device:
            return None
        number, scale_at, scale_end, scaling = 1.0, 0, 0, scaling_of(None)
        if type(scale) is float:
            if not 0 <= scale < math.inf:
                return None
            number, scaling = scale, scaling_of(scale)
        elif scale is not None:
            if not (single(scale, _FLOAT, device) or single(scale, _DOUBLE, device)):
                return None
            scale_at, scaling = scale.data.ptr, scaling_of(scale)
            scale_end = scale_at + scale.itemsize
        if out is None:
            if capturing():
                return None
            out = device_cast.new(x.shape, row)
            target = (out.data if row.packed else out).data.ptr
        elif (
            type(out) is not array
            or out.dtype is not tag
            or row.packed
            or out.shape != x.shape
            or not out._c_contiguous
            or out.data.device_id != device
        ):
            return None
        else:
            target = out.data.ptr
        end, target_end = begin + n * x.itemsize, target + row.nbytes(n)
        if (target < end and begin < target_end) or (target < scale_end and scale_at < target_end):
            return None
        amax_at = 0
        if amax is not None:
            if not single(amax, _FLOAT, device):
                return None
            amax_at = amax.data.ptr
            amax_end = amax_at + _FLOAT.itemsize
            for one, other in ((begin, end), (target, target_end), (scale_at, scale_end)):
                if amax_at < other and one < amax_end:
                    return None
        key = (device, scaling, amax is not None)
        kernel = kernels.get(key)
        if kernel is None:
            ops = FusedOps(scaling, amax is not None)
            kernel = launch.kernel(CastSpec(rule, "contiguous", unpacked, ops), device)
            kernels[key] = kernel
        seed, offset = random or (0, 0)
        kernel(begin, target, n, FusedArguments(number, scale_at, amax_at, 0, seed, offset))
        return out

    return run
