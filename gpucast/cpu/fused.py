# SPDX-License-Identifier: Apache-2.0
"""Fused casts of host arrays (see `gpucast.casting.fused`): chunk by chunk, the same bits as their kernels give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.operand import Operand
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.random import Random
from gpucast.core.rule import CastRule, has_stochastic, resolve
from gpucast.cpu import cast as host_cast
from gpucast.cpu import compiled
from gpucast.cpu import lanes as host
from gpucast.cpu import stochastic as host_stochastic
from gpucast.cpu import stochastic_steps as host_steps
from gpucast.cpu.chunks import CHUNK, codes_of, packed_pairs, pairs

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


def apply(source: Operand, rule: CastRule, fused: FusedInputs, target: Operand | None = None) -> Operand:
    """Cast into `target`, which is returned, or into a new array of the source's kind."""
    if fused.scale is None and fused.amax is None and fused.finite is None:
        return host_cast.apply(source, rule, target, fused.random)
    result = target
    if result is None or np.may_share_memory(source.data, result.data):
        result = host_cast.empty_like(source, rule.dst)
    one_pass(source.plain, rule, fused, result.plain)
    if target is None or result is target:
        return result
    target.data[...] = result.data
    return target


def one_pass(x: Any, rule: CastRule, fused: FusedInputs, out: Any) -> None:
    """Cast a NumPy array or a PackedArray over one into an array that does not overlap it."""
    if fused.scale is None and fused.amax is None and fused.finite is None:
        host_cast.into(x, rule, out, fused.random)
        return
    pass_ = _Pass(rule, fused, x.size)
    with np.errstate(all="ignore"):
        for codes, results in _chunks(x, rule, out, pass_.chunk, row_major=fused.random is not None):
            pass_.cast(codes, results)
    pass_.finish()


class _Pass:
    """One pass over an array, in chunks that follow each other."""

    def __init__(self, rule: CastRule, fused: FusedInputs, size: int) -> None:
        self._fused = fused
        self._compiled: compiled.FusedCast | None = None
        if size > host.SHORT:
            nbytes = size * rule.src.code_numpy.itemsize
            self._compiled = compiled.find_fused(rule, nbytes, fused.scale is not None)
        #: The most elements to cast at a time. Compiled code keeps to the cache by itself, and has threads.
        self.chunk = CHUNK if self._compiled is None else size
        #: Of the step that rounds.
        self._rule = rule if fused.scale is None else _of_product(rule)
        self._src = rule.src
        self._begin = 0
        #: The largest magnitude so far as the code of a FLOAT (below any, none), and whether all were finite.
        self._largest, self._finite = -(1 << 31), True

    def cast(self, x: Array, out: Array) -> None:
        """Cast flat, native, contiguous elements; NumPy's floating-point errors are off."""
        rule, fused = self._rule, self._fused
        random = fused.random and Random(fused.random.seed, fused.random.offset + self._begin)
        self._begin += x.size
        if self._compiled is not None:
            largest, finite = self._compiled(x, out, fused._replace(random=random))
            self._largest, self._finite = max(self._largest, largest), self._finite and finite
            return
        if fused.amax is not None:
            self._largest = max(self._largest, _largest(x, self._src))
        if fused.finite is not None:
            self._finite = self._finite and _is_finite(x, self._src)
        if fused.scale is not None:
            x = _product(x, self._src, fused.scale)
        if fused.scale is not None and random is None and x.size <= host.SHORT and has_stochastic(rule.dst):
            # As `host.apply` would, in fewer calls.
            host_steps.put(rule)(x, None, out.view(rule.dst.code_numpy))
        elif random is None:
            host.apply(x, rule, out)
        else:
            host_stochastic.apply(x, rule, out, random)

    def finish(self) -> None:
        if self._fused.amax is not None:
            code = self._fused.amax.view(np.int32)
            code[...] = max(int(code.reshape(())[()]), self._largest)
        if self._fused.finite is not None and not self._finite:
            self._fused.finite[...] = 0


def _largest(x: Array, src: DType) -> int:
    """The largest magnitude as the code of a FLOAT."""
    if _is_wide_float(src):
        code = _largest_code(x, src)
        # Rounding keeps the order of magnitudes.
        x = np.array([code], src.code_numpy).view(src.numpy)
    if src is not _FLOAT:
        narrow = np.empty(x.size, np.float32)
        host.apply(x, _to(src, _FLOAT), narrow)
        code = int((narrow.view(np.uint32) & 0x7FFFFFFF).max())
    return code if code <= _FLOAT.inf_code else _FLOAT.nan_code


def _is_wide_float(row: DType) -> bool:
    """Whether it is a float whose code without the sign is larger for larger magnitudes, and largest for NaN."""
    return row.is_float and row.bits >= 16


def _largest_code(x: Array, src: DType) -> int:
    """The largest code without its sign, of a wide float. No memory is written."""
    codes, sign = x.view(src.code_numpy), src.sign_code
    # As unsigned numbers the negative ones come last; as signed numbers the others do.
    last = int(np.maximum.reduce(codes))
    return last if last < sign else max(last - sign, int(np.maximum.reduce(codes.view(f"i{src.numpy.itemsize}"))))


def _is_finite(x: Array, src: DType) -> bool:
    if not src.has_nan:
        return True
    if _is_wide_float(src):
        return _largest_code(x, src) <= src.max_code
    codes = x.view(src.code_numpy)
    beyond = (codes & (src.code_mask ^ src.sign_code)) > src.max_code
    return not bool(beyond.any() or (codes == src.nan_code).any())


def _product(x: Array, src: DType, scale: float) -> Array:
    values = x
    if not (_is_wide_float(src) and src.bits >= 32):
        values = np.empty(x.size, np.float64)
        host.apply(x, _to(src, _DOUBLE), values)
    product: Array = np.multiply(values, scale, dtype=np.float64)
    # NaN counts as the largest.
    if math.isnan(np.maximum.reduce(product)):
        # Which NaN a multiplication gives is the processor's choice.
        nan = np.flatnonzero(np.isnan(product))
        product[nan] = np.copysign(np.nan, np.where(np.isnan(values[nan]), values[nan], 1.0))
    return product


@lru_cache
def _of_product(rule: CastRule) -> CastRule:
    return replace(rule, src=_DOUBLE)


@lru_cache
def _to(src: DType, wide: DType) -> CastRule:
    return resolve(src, wide)


# ---- chunks ----


def _is_plain(x: Array, row: DType) -> bool:
    return type(x) is np.ndarray and x.dtype is row.numpy and x.flags.carray


def _chunks(x: Any, rule: CastRule, out: Any, chunk: int, *, row_major: bool) -> Iterable[tuple[Array, Array]]:
    """Flat pieces of x, each with memory for its result, which is in `out` once the next piece is asked for."""
    src, dst = rule.src, rule.dst
    if isinstance(x, PackedArray):
        return packed_pairs(x, dst, out)
    if 0 < x.size <= chunk and _is_plain(x, src) and _is_plain(out, dst):
        return ((x.reshape(-1), out.reshape(-1)),)
    chunks = pairs(codes_of(x, src), codes_of(out, dst), chunk, row_major=row_major)
    return ((codes.view(src.numpy), results.view(dst.numpy)) for codes, results in chunks)
