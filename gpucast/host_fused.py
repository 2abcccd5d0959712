# SPDX-License-Identifier: Apache-2.0
"""Fused casts of host arrays (see `gpucast.fused_cast`): chunk by chunk, the same bits as their kernels give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import host, host_cast
from gpucast.dtypes import DType, dtype
from gpucast.fusion import Fusion
from gpucast.packed import PackedArray, pack_codes, unpack_codes
from gpucast.random_bits import Random
from gpucast.rule import Rule, resolve

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")


def apply(x: Any, rule: Rule, fusion: Fusion, out: Any = None) -> Any:
    """Cast a NumPy array or a PackedArray over one, into `out` or a new array of the same kind."""
    if fusion.scale is None and fusion.amax is None and fusion.finite is None:
        return host_cast.apply(x, rule, out, fusion.random)
    result = out
    if out is None or np.may_share_memory(*(a.data if isinstance(a, PackedArray) else a for a in (x, out))):
        result = _new_like(x, rule.dst)
    pass_ = _Pass(rule, fusion)
    for codes, room in _chunks(x, rule, result, row_major=fusion.random is not None):
        pass_.cast(codes, room)
    pass_.finish()
    if out is None or out is result:
        return result
    if isinstance(out, PackedArray):
        out.data[...] = result.data
    else:
        out[...] = result
    return out


class _Pass:
    """One pass over an array, in chunks that follow each other."""

    def __init__(self, rule: Rule, fusion: Fusion) -> None:
        self._rule, self._fusion = rule, fusion
        self._begin = 0
        #: The largest magnitude so far as the code of a FLOAT (below any, none), and whether all were finite.
        self._largest, self._finite = -(1 << 31), True

    def cast(self, x: Array, out: Array) -> None:
        """Cast flat, native, contiguous elements."""
        rule, fusion = self._rule, self._fusion
        if fusion.amax is not None:
            self._largest = max(self._largest, _largest(x, rule.src))
        if fusion.finite is not None:
            self._finite = self._finite and _is_finite(x, rule.src)
        if fusion.scale is not None:
            x, rule = _product(x, rule.src, fusion.scale), replace(rule, src=_DOUBLE)
        if fusion.random is None:
            host.apply(x, rule, out)
        else:
            seed, offset = fusion.random
            host_cast.apply(x, rule, out, Random(seed, offset + self._begin))
        self._begin += x.size

    def finish(self) -> None:
        if self._fusion.amax is not None:
            code = self._fusion.amax.view(np.int32)
            code[...] = max(int(code.reshape(())[()]), self._largest)
        if self._fusion.finite is not None and not self._finite:
            self._fusion.finite[...] = 0


def _largest(x: Array, src: DType) -> int:
    narrow = np.empty(x.size, np.float32)
    host.apply(x, resolve(src, _FLOAT), narrow)
    code = int((narrow.view(np.uint32) & 0x7FFFFFFF).max())
    return code if code <= _FLOAT.inf_code else _FLOAT.nan_code


def _is_finite(x: Array, src: DType) -> bool:
    if not src.has_nan:
        return True
    codes = x.view(src.code_numpy)
    beyond = (codes & (src.code_mask ^ src.sign_code)) > src.max_code
    return not bool(beyond.any() or (codes == src.nan_code).any())


def _product(x: Array, src: DType, scale: float) -> Array:
    wide = np.empty(x.size, np.float64)
    host.apply(x, resolve(src, _DOUBLE), wide)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        product = np.multiply(wide, scale)
    nan = np.isnan(product)
    if nan.any():
        # Which NaN a multiplication gives is the processor's choice.
        product[nan] = np.copysign(np.nan, np.where(np.isnan(wide[nan]), wide[nan], 1.0))
    return product


# ---- chunks ----


def _new_like(x: Any, row: DType) -> Any:
    if not isinstance(x, PackedArray):
        return np.empty_like(x, dtype=row.numpy, order="K", subok=False)
    if not row.packed:
        return np.empty(x.shape, row.numpy)
    return PackedArray(np.empty(row.nbytes(x.size), np.uint8), row, x.shape)


def _chunks(x: Any, rule: Rule, out: Any, *, row_major: bool) -> Iterator[tuple[Array, Array]]:
    """Flat pieces of x, each with room for its result, which is in `out` once the next piece is asked for."""
    if isinstance(x, PackedArray):
        return _packed_chunks(x, rule, out)
    return _array_chunks(x, rule, out, row_major)


def _array_chunks(x: Array, rule: Rule, out: Array, row_major: bool) -> Iterator[tuple[Array, Array]]:
    src, dst = rule.src, rule.dst
    kinds = [row.code_numpy for row in (src, dst)]
    given = [
        array.view(kind if array.dtype.isnative else kind.newbyteorder(array.dtype.byteorder))
        for array, kind in zip((np.asarray(x), np.asarray(out)), kinds, strict=True)
    ]
    if not x.size:
        return
    chunks = np.nditer(  # type: ignore[call-overload]  # NumPy's stub misspells "contig".
        given,
        flags=["external_loop", "buffered"],
        op_flags=[["readonly", "contig", "aligned"], ["writeonly", "contig", "aligned"]],
        op_dtypes=kinds,
        order="C" if row_major else "K",
        casting="equiv",
        buffersize=host.CHUNK,
    )
    with chunks:
        for codes, room in chunks:
            yield codes.view(src.numpy), room.view(dst.numpy)


def _packed_chunks(x: PackedArray, rule: Rule, out: Any) -> Iterator[tuple[Array, Array]]:
    src, dst = rule.src, rule.dst
    flat = out.data if dst.packed else out.reshape(-1) if out.flags.c_contiguous else np.empty(x.size, dst.numpy)
    for start in range(0, x.size, host.CHUNK):
        count = min(host.CHUNK, x.size - start)
        first = src.nbytes(start)
        codes = unpack_codes(x.data[first : first + src.nbytes(count)], src.bits, count).view(src.numpy)
        if dst.packed:
            room = np.empty(count, dst.numpy)
            yield codes, room
            first = dst.nbytes(start)
            flat[first : first + dst.nbytes(count)] = pack_codes(room.view(np.uint8), dst.bits)
        else:
            yield codes, flat[start : start + count]
    if not dst.packed and not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)
