# SPDX-License-Identifier: Apache-2.0
"""Casts of numbers from host memory to host memory, packed arrays included, plain or fused: by the extension module, or
by the reference where that is missing or has no loop. Text is read and written by `gpucast.host.text`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import reference
from gpucast.arrays.packed import PackedArray
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE, say_slow
from gpucast.core.fuse import EMPTY, Fuse
from gpucast.core.rule import CastRule, resolve
from gpucast.host import loops

NDArray = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Elements that are cast at a time: the reference takes a hundred bytes for each.
_CHUNK = 1 << 16


def into(x: Any, rule: CastRule, out: Any, fuse: Fuse = EMPTY) -> None:
    """Cast the numbers of a NumPy array or a PackedArray over one into all of an array that does not overlap it. With a
    scale the rule is that of `resolve` with a scale."""
    if MODULE is None:
        say_slow()
        _by_reference(x, rule, out, fuse)
        return
    if not x.size:
        return
    try:
        # Of a plain cast the work is kept.
        work = loops.plain(rule) if fuse is EMPTY else loops.work(rule, fuse)
    except LookupError as error:
        say_slow(str(error.args[0]))
        _by_reference(x, rule, out, fuse)
        return
    src, src_bits = (x.data, x.dtype.bits) if isinstance(x, PackedArray) else (x, 0)
    dst, dst_bits = (out.data, out.dtype.bits) if isinstance(out, PackedArray) else (out, 0)
    largest, finite = MODULE.cast(work, src, src_bits, dst, dst_bits, x.size)
    if fuse is not EMPTY:
        keep(fuse, largest, bool(finite))


def keep(fuse: Fuse, largest: int, finite: bool) -> None:
    """Merge the findings of a cast (`largest`: the code of a FLOAT, any NaN) into the caller's arrays."""
    if fuse.amax is not None:
        code = fuse.amax.view(np.int32)
        found = largest if largest <= _FLOAT.inf_code else _FLOAT.nan_code
        code[...] = max(int(code.reshape(())[()]), found)
    if fuse.finite is not None and not finite:
        fuse.finite[...] = 0


@exact()
def _by_reference(x: Any, rule: CastRule, out: Any, fuse: Fuse) -> None:
    """As `into`, by the reference: the same bits, slowly."""
    # In row-major order, to which random words belong.
    elements = (x.get() if isinstance(x, PackedArray) else x).reshape(-1)
    results = np.empty(x.size, rule.dst.numpy)
    for start in range(0, x.size, _CHUNK):
        random = fuse.random and fuse.random._replace(offset=fuse.random.offset + start)
        part = slice(start, start + _CHUNK)
        results[part] = _cast(elements[part], rule, fuse._replace(random=random))
    if isinstance(out, PackedArray):
        out.data[...] = PackedArray.pack(results).data
    else:
        out[...] = results.reshape(out.shape)


def _cast(x: NDArray, rule: CastRule, fuse: Fuse) -> NDArray:
    _look(x, rule.src, fuse)
    words = fuse.random and reference.exact_cast.random_words(fuse.random, x.size)
    if fuse.scale is None:
        return reference.exact_cast.apply(x, rule, words)
    return reference.exact_cast.apply(_products(x, rule.src, fuse.scale), replace(rule, src=_DOUBLE), words)


def _look(x: NDArray, src: DType, fuse: Fuse) -> None:
    largest = 0
    if fuse.amax is not None:
        largest = int((_to(x, src, _FLOAT).view(np.uint32) & np.uint32(0x7FFFFFFF)).max())
    keep(fuse, largest, fuse.finite is None or bool(np.isfinite(_to(x, src, _DOUBLE)).all()))


def _products(x: NDArray, src: DType, scale: float) -> NDArray:
    """Values times a scale as DOUBLE: NaN keeps its sign, and that of infinity times zero is positive."""
    values = _to(x, src, _DOUBLE)
    products: NDArray = values * np.float64(scale)
    lost = np.isnan(products)
    products[lost] = np.copysign(np.nan, np.where(np.isnan(values[lost]), values[lost], 1.0))
    return products


def _to(x: NDArray, src: DType, wide: DType) -> NDArray:
    return reference.exact_cast.apply(x, resolve(src, wide))
