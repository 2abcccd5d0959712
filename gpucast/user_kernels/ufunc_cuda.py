# SPDX-License-Identifier: Apache-2.0
"""Expressions of several arrays on one device, cast once, in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpucast.arrays.array import Array
from gpucast.casting import cuda
from gpucast.casting.cuda_launches import fused_values
from gpucast.casting.engine import Call
from gpucast.core.rule import CastRule
from gpucast.kernel import driver
from gpucast.kernel.fused_kernel import FUSED, FusedOps
from gpucast.kernel.strides import collapse
from gpucast.user_kernels.expression import Expression
from gpucast.user_kernels.ufunc_kernel import MAX_INPUTS, MAX_UFUNC_DIMS, UFUNC_INPUT, UfuncInput, Walk, ufunc_kernel

#: In bits.
_Strides = tuple[int, ...]


def apply(expression: Expression, inputs: Sequence[Array | float], shape: tuple[int, ...], call: Call) -> Array:
    """Evaluate on the current stream of the source's device into the target of a call, or a new array.

    Inputs are arrays on that device, or numbers of the compute type. ValueError for more inputs or dimensions than the
    arguments of a kernel hold; else as for `gpucast.casting.cuda.CudaEngine`.
    """
    if len(inputs) > MAX_INPUTS:
        raise ValueError(f"ufunc: {len(inputs)} inputs; a kernel takes {MAX_INPUTS}")
    rule, target, device = call.rule, call.target, call.source.device
    assert device is not None
    with driver.driver().on(device):
        if target is None:
            cuda.check_allocation(call.caller)
            target = Array.of(cuda.new(shape, rule.dst), rule.dst)
        n = math.prod(shape)
        if n:
            out = _strides(target, shape)
            kinds, given = zip(*(input_of(one, shape, out, rule) for one in inputs), strict=True)
            walk: Walk = "dense" if _is_dense(shape, out, rule.dst.bits) else "strided"
            kernel = ufunc_kernel(expression, rule, FusedOps.of(call.fuse), kinds, walk)
            arguments = FUSED.pack(*fused_values(call.fuse)) + b"".join(given)
            driver.launch(kernel, device, 0, target.address, n, arguments)
    return target


def input_of(one: Array | float, shape: tuple[int, ...], out: _Strides, rule: CastRule) -> tuple[UfuncInput, bytes]:
    """How a kernel reads an input, and the bytes of `UFUNC_INPUT`."""
    if isinstance(one, float):
        kind = UfuncInput(rule.src, rule.src.bits, "number")
        at, number, strides = 0, one, (0,) * len(shape)
    else:
        bits, strides = one.dtype.bits if one.packed else 8 * one.itemsize, _strides(one, shape)
        kind = UfuncInput(one.dtype, bits, "dense" if _is_dense(shape, strides, bits) else "strided")
        at, number = one.address, 0.0
    return kind, UFUNC_INPUT.pack(at, number, *collapse(shape, strides, out).values(MAX_UFUNC_DIMS))


def _strides(x: Array, shape: tuple[int, ...]) -> _Strides:
    """The strides, in bits, of an array broadcast to a shape."""
    if x.strides is None:
        strides = [x.dtype.bits * math.prod(x.shape[axis + 1 :]) for axis in range(len(x.shape))]
    else:
        strides = [8 * stride for stride in x.strides]
    repeated = [0 if length == 1 else stride for length, stride in zip(x.shape, strides, strict=True)]
    return (0,) * (len(shape) - len(repeated)) + tuple(repeated)


def _is_dense(shape: tuple[int, ...], strides: _Strides, bits: int) -> bool:
    return collapse(shape, strides, strides).src in ((), (bits,))
