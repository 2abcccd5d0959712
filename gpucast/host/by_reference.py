# SPDX-License-Identifier: Apache-2.0
"""Casts of the host by the reference, where the extension module is missing: the same bits, slowly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.arrays.packed import PackedArray
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule, resolve
from gpucast.reference.exact_cast import apply, random_words

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Elements that are cast at a time: the reference takes a hundred bytes for each.
_CHUNK = 1 << 16


@exact()
def into(x: Any, rule: CastRule, out: Any, fused: FusedInputs | None = None) -> None:
    """As `gpucast.host.cast_numbers.into`."""
    fused = fused or FusedInputs()
    # In row-major order, to which random words belong.
    elements = (x.get() if isinstance(x, PackedArray) else x).reshape(-1)
    results = np.empty(x.size, rule.dst.numpy)
    for start in range(0, x.size, _CHUNK):
        random = fused.random and fused.random._replace(offset=fused.random.offset + start)
        part = slice(start, start + _CHUNK)
        results[part] = _cast(elements[part], rule, fused._replace(random=random))
    if isinstance(out, PackedArray):
        out.data[...] = PackedArray.pack(results).data
    else:
        out[...] = results.reshape(out.shape)


def _cast(x: Array, rule: CastRule, fused: FusedInputs) -> Array:
    if fused.amax is not None or fused.finite is not None:
        _look(x, rule.src, fused)
    words = fused.random and random_words(fused.random, x.size)
    if fused.scale is None:
        return apply(x, rule, words)
    return apply(_products(x, rule.src, fused.scale), replace(rule, src=_DOUBLE), words)


def _look(x: Array, src: DType, fused: FusedInputs) -> None:
    if fused.amax is not None:
        largest = int((_to(x, src, _FLOAT).view(np.uint32) & np.uint32(0x7FFFFFFF)).max())
        code = fused.amax.view(np.int32)
        code[...] = max(int(code.reshape(())[()]), min(largest, _FLOAT.nan_code))
    if fused.finite is not None and not np.isfinite(_to(x, src, _DOUBLE)).all():
        fused.finite[...] = 0


def _products(x: Array, src: DType, scale: float) -> Array:
    """Values times a scale as DOUBLE: NaN keeps its sign, and that of infinity times zero is positive."""
    values = _to(x, src, _DOUBLE)
    products: Array = values * np.float64(scale)
    lost = np.isnan(products)
    products[lost] = np.copysign(np.nan, np.where(np.isnan(values[lost]), values[lost], 1.0))
    return products


def _to(x: Array, src: DType, wide: DType) -> Array:
    return apply(x, resolve(src, wide))
