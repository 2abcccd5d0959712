# SPDX-License-Identifier: Apache-2.0
"""Quick casts on a device for calls like earlier ones: the ``run`` of `gpucast.casting.plans.keep`.

They take arrays on the current device, if bounds show that the result overlaps no other memory. For any other call, and
for a wrong one, they do nothing and return None; then the checked path serves the call, or raises. With `out`, the only
question before the launch is which device is the current one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpucast.arrays.bitpacking import namespace
from gpucast.arrays.operand import Operand
from gpucast.arrays.overlap import are_disjoint
from gpucast.arrays.packed import PackedArray
from gpucast.core.fused_ops import Scaling, resolve_random, scaling_of
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule
from gpucast.gpu import cast_on_gpu, driver
from gpucast.kernel.cast_kernel import Shape, plain_kernel
from gpucast.kernel.fused_kernel import FUSED, FusedOps, cast_kernel
from gpucast.kernel.kernel import ALIGNED, Kernel, array_and

_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
#: The arguments of a fused cast.
_PACK = array_and(FUSED).pack


def plain(source: Operand, rule: CastRule, kernels: dict[int, driver.Launch]) -> Callable[[Any, Any], Any]:
    """``run(x, out)`` of the plain casts of arrays of the kind of `source`. It keeps those of contiguous arrays, by
    device, in `kernels`.

    Source and target may also be one and the same memory.
    """
    cuda = driver.driver()
    current, capturing, empty, kind, tag = cuda.current, cuda.capturing, cuda.empty, rule.dst, rule.dst.numpy
    from_packed, to_packed = source.packed, rule.dst.packed
    array: Any = namespace(source.data).ndarray
    unpacked = rule.src.packed and not from_packed
    src_bits, dst_bits = 8 if unpacked else rule.src.bits, rule.dst.bits
    itemsizes = (1 if from_packed else rule.src.numpy.itemsize, 1 if to_packed else tag.itemsize)
    transposes = not (from_packed or to_packed)
    contiguous, pack = plain_kernel(rule, "contiguous", unpacked), driver.array_arguments
    block, most_ahead = contiguous.block, contiguous.ahead
    others: dict[tuple[Shape, int], tuple[Kernel, driver.Launch]] = {}

    def run(x: Any, out: Any) -> Any:
        if from_packed:
            src = x.data
            if type(src) is not array:
                return None
        else:
            src = x
        memory, n, flat = src.data, x.size, src._c_contiguous
        device, begin = memory.device_id, memory.ptr
        if current() != device:
            return None
        if out is None:
            if capturing():
                return None
            if to_packed:
                out = cast_on_gpu.new(x.shape, kind)
                dst = out.data
            else:
                out = dst = empty(x.shape, tag) if flat else cast_on_gpu.new_strided(x.shape, x.strides, kind)
            target, given = dst.data.ptr, False
        else:
            if to_packed:
                if type(out) is not PackedArray or out.dtype is not kind:
                    return None
                dst = out.data
            else:
                dst = out
            # CuPy makes a shape anew each time it is asked.
            if (
                type(dst) is not array
                or (dst.dtype is not tag and not to_packed)
                or ((out.ndim != 1 or x.ndim != 1 or out.size != n) and out.shape != x.shape)
            ):
                return None
            memory = dst.data
            if memory.device_id != device:
                return None
            target, given = memory.ptr, True
            flat = flat and dst._c_contiguous
        if not n:
            return out
        if not flat:
            if given and not are_disjoint(src, dst):
                return None
            shape, dims, n = cast_on_gpu.strided_layout(
                x.shape,
                None if from_packed else x.strides,
                None if to_packed else dst.strides,
                itemsizes,
                False,
                transposes,
            )
            loaded = others.get((shape, device))
            if loaded is None:
                kernel = plain_kernel(rule, shape, unpacked)
                loaded = others[shape, device] = kernel, driver.load(kernel, device)
            kernel, launch = loaded
            last = b"" if dims is None else dims.packed
            launch(kernel.blocks(n, target), pack(begin, 0, target, n) + last)
            return out
        if (
            given
            and target < begin + (n * src_bits + 7 >> 3)
            and begin < target + (n * dst_bits + 7 >> 3)
            and not (begin == target and src_bits == dst_bits and src.strides == dst.strides)
        ):
            return None
        try:
            launch = kernels[device]
        except KeyError:
            launch = kernels[device] = driver.load(contiguous, device)
        ahead = most_ahead if target % ALIGNED else 0
        launch(-(-(n + ahead) // block), pack(begin, 0, target, n))
        return out

    return run


def fused(source: Operand, rule: CastRule) -> Callable[[Any, Any, Any, Any, Any, Any], Any]:
    """``run(x, out, seed, offset, scale, amax)`` of the fused casts of CuPy arrays of the kind of `source`.

    It takes contiguous arrays alone.
    """
    cuda = driver.driver()
    current, capturing, kind, tag = cuda.current, cuda.capturing, rule.dst, rule.dst.numpy
    array: Any = namespace(source.data).ndarray
    unpacked = rule.src.packed
    rounding = STOCHASTIC if rule.rounding == STOCHASTIC else None
    kernels: dict[tuple[int, Scaling, bool], tuple[Kernel, driver.Launch]] = {}

    def single(value: Any, kind: np.dtype[Any], device: int) -> bool:
        return (
            type(value) is array
            and value.dtype is kind
            and value.size == 1
            and value.data.device_id == device
            and cast_on_gpu.is_aligned(value)
        )

    def run(x: Any, out: Any, seed: Any, offset: Any, scale: Any, amax: Any) -> Any:
        try:
            random = resolve_random(rounding, seed, offset)
        except (TypeError, ValueError):
            return None
        n = x.size
        if not x._c_contiguous or not n:
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
            out = cast_on_gpu.new(x.shape, kind)
            target = (out.data if kind.packed else out).data.ptr
        elif (
            type(out) is not array
            or out.dtype is not tag
            or kind.packed
            or out.shape != x.shape
            or not out._c_contiguous
            or out.data.device_id != device
        ):
            return None
        else:
            target = out.data.ptr
        end, target_end = begin + n * x.itemsize, target + kind.nbytes(n)
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
        loaded = kernels.get(key)
        if loaded is None:
            kernel = cast_kernel(rule, "contiguous", unpacked, FusedOps(scaling, amax is not None))
            loaded = kernels[key] = kernel, driver.load(kernel, device)
        kernel, launch = loaded
        seed, first = random or (0, 0)
        launch(kernel.blocks(n, target), _PACK(begin, 0, target, n, number, scale_at, amax_at, 0, seed, first, 0))
        return out

    return run
