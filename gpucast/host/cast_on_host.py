# SPDX-License-Identifier: Apache-2.0
"""Checked casts of numbers from host memory to host memory, packed arrays included, plain or fused: by the extension
module, or by the reference where that is missing. Text is read and written by `gpucast.host.text_on_host`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import reference
from gpucast.arrays.array import Array, result_like
from gpucast.arrays.packed import PackedArray
from gpucast.core.arithmetic import exact
from gpucast.core.dtypes import DType, dtype
from gpucast.core.extension import MODULE, say_slow
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import CastRule, resolve
from gpucast.host import loops

NDArray = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Elements that are cast at a time: the reference takes a hundred bytes for each.
_CHUNK = 1 << 16


def apply(source: Array, rule: CastRule, target: Array | None = None, fused: FusedInputs | None = None) -> Array:
    """Cast into `target`, which is returned, or into a new array of the source's kind. With a scale the rule is a
    `gpucast.casting.fused_options.fused_rule`."""
    # Packed elements, which have equal layouts if they share memory, are read before they are written. A packed target
    # shares none with another source, though their bounds may meet.
    if target is not None and (source.packed or target.packed or not np.may_share_memory(source.data, target.data)):
        into(source.plain, rule, target.plain, fused)
        return target
    result = empty_like(source, rule.dst)
    into(source.plain, rule, result.plain, fused)
    if target is None:
        return result
    target.data[...] = result.data
    return target


def empty_like(source: Array, kind: DType) -> Array:
    """A new array for the cast of `source` to a dtype, of the kind that the source is."""
    array: Any
    if not source.packed:
        array = np.empty_like(source.data, kind.numpy, "K", False)
    elif kind.packed:
        array = PackedArray(np.empty(kind.nbytes(source.size), np.uint8), kind, source.shape)
    else:
        array = np.empty(source.shape, kind.numpy)
    return result_like(source, array, kind)


def into(x: Any, rule: CastRule, out: Any, fused: FusedInputs | None = None) -> None:
    """Cast the numbers of a NumPy array or a PackedArray over one into all of an array that does not overlap it."""
    if MODULE is None:
        say_slow()
        _by_reference(x, rule, out, fused)
        return
    if not x.size:
        return
    try:
        work = loops.work(rule, fused)
    except LookupError as error:
        say_slow(str(error.args[0]))
        _by_reference(x, rule, out, fused)
        return
    src, src_bits = _bytes_of(x)
    dst, dst_bits = _bytes_of(out)
    largest, finite = MODULE.cast(work, src, src_bits, dst, dst_bits, x.size)
    if fused is not None:
        keep(fused, largest, bool(finite))


def keep(fused: FusedInputs, largest: int, finite: bool) -> None:
    """Merge the findings of a cast (`largest`: the code of a FLOAT, any NaN) into the caller's arrays."""
    if fused.amax is not None:
        code = fused.amax.view(np.int32)
        found = largest if largest <= _FLOAT.inf_code else _FLOAT.nan_code
        code[...] = max(int(code.reshape(())[()]), found)
    if fused.finite is not None and not finite:
        fused.finite[...] = 0


def _bytes_of(x: Any) -> tuple[NDArray, int]:
    """The array that holds the elements, and the bits of each where they are packed, else 0."""
    return (x.data, x.dtype.bits) if isinstance(x, PackedArray) else (x, 0)


@exact()
def _by_reference(x: Any, rule: CastRule, out: Any, fused: FusedInputs | None = None) -> None:
    """As `into`, by the reference: the same bits, slowly."""
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


def _cast(x: NDArray, rule: CastRule, fused: FusedInputs) -> NDArray:
    _look(x, rule.src, fused)
    words = fused.random and reference.exact_cast.random_words(fused.random, x.size)
    if fused.scale is None:
        return reference.exact_cast.apply(x, rule, words)
    return reference.exact_cast.apply(_products(x, rule.src, fused.scale), replace(rule, src=_DOUBLE), words)


def _look(x: NDArray, src: DType, fused: FusedInputs) -> None:
    largest = 0
    if fused.amax is not None:
        largest = int((_to(x, src, _FLOAT).view(np.uint32) & np.uint32(0x7FFFFFFF)).max())
    keep(fused, largest, fused.finite is None or bool(np.isfinite(_to(x, src, _DOUBLE)).all()))


def _products(x: NDArray, src: DType, scale: float) -> NDArray:
    """Values times a scale as DOUBLE: NaN keeps its sign, and that of infinity times zero is positive."""
    values = _to(x, src, _DOUBLE)
    products: NDArray = values * np.float64(scale)
    lost = np.isnan(products)
    products[lost] = np.copysign(np.nan, np.where(np.isnan(values[lost]), values[lost], 1.0))
    return products


def _to(x: NDArray, src: DType, wide: DType) -> NDArray:
    return reference.exact_cast.apply(x, resolve(src, wide))
