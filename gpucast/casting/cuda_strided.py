# SPDX-License-Identifier: Apache-2.0
"""The parts of plans for arrays on devices that are written in Python: new results, and arrays with strides.

For any call that they cannot serve, and for a wrong one, they do nothing and return None; then the checked path serves
the call, or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucast.arrays.overlap import are_disjoint
from gpucast.arrays.packed import PackedArray
from gpucast.casting import cuda
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.cast_kernel import Shape, plain_kernel
from gpucast.kernel.kernel import Kernel


def empty(kind: DType) -> Callable[[Any], Any]:
    """``empty(x)``: a new row-major result for x, which is on the current device; None while a graph is captured."""
    own, new, tag = driver.driver(), cuda.new, kind.numpy
    capturing, array = own.capturing, own.empty
    if kind.packed:
        return lambda x: None if capturing() else new(x.shape, kind)
    return lambda x: None if capturing() else array(x.shape, tag)


def strided(array: Any, from_packed: bool, rule: CastRule) -> Callable[..., Any]:
    """``run(x, ..., out)`` of the plain casts of arrays of a class, or of packed elements in such, that are not all
    row-major."""
    own = driver.driver()
    current, capturing, kind, tag = own.current, own.capturing, rule.dst, rule.dst.numpy
    to_packed = rule.dst.packed
    unpacked = rule.src.packed and not from_packed
    itemsizes = (1 if from_packed else rule.src.numpy.itemsize, 1 if to_packed else tag.itemsize)
    transposes = not (from_packed or to_packed)
    loaded: dict[tuple[Shape, int], tuple[Kernel, driver.Launch]] = {}

    def run(x: Any, seed: Any, offset: Any, scale: Any, amax: Any, out: Any) -> Any:
        src = x.data if from_packed else x
        if type(src) is not array or not x.size:
            return None
        device, flat = src.data.device_id, src._c_contiguous
        if current() != device:
            return None
        if out is None:
            if flat or capturing():
                return None
            out = cuda.new(x.shape, kind) if to_packed else cuda.new_strided(x.shape, x.strides, kind)
            dst = out.data if to_packed else out
        else:
            dst = out.data if type(out) is PackedArray and to_packed else out
            if type(dst) is not array or (flat and dst._c_contiguous) or out.dtype != (kind if to_packed else tag):
                return None
            if out.shape != x.shape or dst.data.device_id != device or not are_disjoint(src, dst):
                return None
        shape, dims, n = cuda.strided_layout(
            x.shape,
            None if from_packed else x.strides,
            None if to_packed else dst.strides,
            itemsizes,
            False,
            transposes,
        )
        found = loaded.get((shape, device))
        if found is None:
            kernel = plain_kernel(rule, shape, unpacked)
            found = loaded[shape, device] = kernel, driver.ready(kernel, device)
        kernel, launch = found
        target, last = dst.data.ptr, b"" if dims is None else dims.packed
        launch(kernel.blocks(n, target), driver.array_arguments(src.data.ptr, 0, target, n) + last)
        return out

    return run
