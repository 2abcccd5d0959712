# SPDX-License-Identifier: Apache-2.0
"""Quantization by the host's compiled library: the extremes of blocks, and the codes of quotients.

NumPy does what the library does not support: infinities and NaN, DOUBLE, short blocks.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast.codegen.host import HostUnit, equal_unit, quotient_unit
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.formats import SOURCES, Format
from gpucast.core.rule import resolve
from gpucast.cpu.encode import decode, encode
from gpucast.native import library as host_native
from gpucast.quantization.cpu.blocks import BlockGrid

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
_SOURCES = tuple(kind for kind in SOURCES if kind is not _DOUBLE)
#: The shortest blocks worth it: each row of a block costs a call, and NumPy is quicker for shorter rows.
_SHORTEST = 16
#: `short_block` of kernels/host/blocks.hpp.
_COUNTS = 32


class _Blocks(ctypes.Structure):
    """`Blocks` of kernels/host/blocks.hpp."""

    _fields_ = [(name, ctypes.c_uint64 * 3) for name in ("shape", "lengths", "grid")]


class _Array(ctypes.Structure):
    """`Array` of kernels/host/blocks.hpp."""

    _fields_ = (("first", ctypes.c_void_p), ("itemsize", ctypes.c_uint64))


class _Integers(ctypes.Structure):
    """`Integers` of kernels/host/blocks.hpp."""

    _fields_ = (("least", ctypes.c_int32), ("most", ctypes.c_int32), ("mask", ctypes.c_uint32))


#: `Step` of kernels/host/blocks.hpp.
_STEP = np.dtype([("d", np.float32), ("zero", np.int32)])


class NativeQuantizer:
    """The functions of the library for arrays of one type and one format."""

    def __init__(self, library: ctypes.CDLL, src: DType, format: Format) -> None:
        self._library, self._src, self._format = library, src, format
        self._each, element = library["each_run"], format.element
        #: Powers of two from 2^-127 to 2^127 have reciprocals that FLOAT holds.
        self._powers = format.scale is _E8M0
        self._more: ctypes.Structure | None = None
        if element.family == "int":
            self._run = self._of_source("Whole")
            self._more = _Integers(int(element.min), int(element.max), element.code_mask)
        else:
            # With a global scale the divisor is a product, which is rounded when it becomes a FLOAT.
            division = "Multiplied" if self._powers else "Near" if format.global_scale else "Divided"
            self._run = library[f"{division}_{element.name}"]

    def _of_source(self, work: str) -> Any:
        return self._library[f"{work}_{self._src.name}"]

    def extremes(self, source: Array, grid: BlockGrid) -> tuple[Array, Array, Array] | None:
        """As `gpucast.quantization.cpu.extremes.extremes`; None for an array with an infinity or NaN."""
        src, ranges = self._src, self._format.two_sided
        results = np.zeros((*grid.counts, 1 + ranges), src.code_numpy)
        # The initial values: as unsigned integers negative numbers begin with -0; as signed ones the others with 0.
        results[..., :-1] = src.sign_code
        run = self._of_source("Range" if ranges else "Largest")
        of_blocks = _array(results, results.itemsize * (1 + ranges))
        self._each(run, _array(source), _array(source), _blocks(grid), of_blocks, None)
        if (results & (src.sign_code - 1)).max(initial=0) > src.max_code:
            return None
        values = results.view(src.numpy).astype(np.float64)
        low = values[..., 0] if ranges else np.zeros(grid.counts)
        return low, values[..., -1], np.zeros(grid.counts, bool)

    def codes(self, source: Array, grid: BlockGrid, d: Array, zero: Array, data: Array) -> None:
        """Write the codes of all quotients by the blocks' `d` (DOUBLE), with the blocks' zero points (INT32)."""
        if self._format.element.family == "int":
            of_blocks = np.empty(grid.counts, _STEP)
            of_blocks["d"], of_blocks["zero"] = d, zero
        elif self._format.global_scale:
            of_blocks = np.ascontiguousarray(d)
        else:
            of_blocks = (1 / d if self._powers else d).astype(np.float32)
        more = None if self._more is None else ctypes.byref(self._more)
        self._each(self._run, _array(source), _array(data), _blocks(grid), _array(of_blocks), more)

    def beyond(self, source: Array, grid: BlockGrid, limits: Array) -> int:
        """How many magnitudes of an array without NaN exceed the limits of their blocks (DOUBLE, not negative)."""
        with np.errstate(over="ignore"):
            nearest = limits.astype(np.float32)
        # The largest FLOAT that does not exceed the limit.
        below = nearest.view(np.uint32) - (nearest > limits).astype(np.uint32)
        counts = np.zeros(_COUNTS, np.uint64)
        x, more = _array(source), ctypes.c_void_p(counts.ctypes.data)
        self._each(self._of_source("Beyond"), x, x, _blocks(grid), _array(below), more)
        return int(counts.sum())


def equal(codes: Array, grid: BlockGrid, of_blocks: Array) -> int | None:
    """How many codes of a contiguous UINT8 array equal `of_blocks` of their block; None without the library."""
    library = host_native.library(equal_unit)
    if library is None or not _is_long_enough(grid):
        return None
    count, x = ctypes.c_uint64(), _array(codes)
    library["each_run"](library["Equal"], x, x, _blocks(grid), _array(of_blocks), ctypes.byref(count))
    return count.value


def find(source: Array, grid: BlockGrid, format: Format) -> NativeQuantizer | None:
    """The quantizer for a native, contiguous array; None where NumPy has to do it."""
    src = dtype(source.dtype)
    if src not in _SOURCES or not source.size or not _is_long_enough(grid):
        return None
    library = host_native.library(_unit, src)
    return None if library is None else _checked(library, src, format)


def announce(src: DType, nbytes: int) -> None:
    """Say that this many bytes of a type are about to be quantized, which may be worth a compiler's time."""
    if src in _SOURCES:
        host_native.library(_unit, src, nbytes=nbytes)
        host_native.library(equal_unit, nbytes=nbytes)


def _unit(src: DType) -> HostUnit:
    return quotient_unit(src, [resolve(_FLOAT, kind) for kind in DTYPES if kind.family == "float" and kind.bits <= 8])


def _is_long_enough(grid: BlockGrid) -> bool:
    return grid.lengths[2] >= _SHORTEST and grid.shape[2] < 1 << 32


@lru_cache(maxsize=64)
def _checked(library: ctypes.CDLL, src: DType, format: Format) -> NativeQuantizer | None:
    """The quantizer, or None if the library does not support this cast or was compiled wrongly."""
    element, integers = format.element, format.element.family == "int"
    # Scales with a smaller range may give quotients that are too large for the library's integers.
    if integers and not (format.has_float_scales or format.scale is _E8M0):
        return None
    native, shape = NativeQuantizer(library, src, format), (64, 64)
    numbers = np.random.default_rng(0).standard_normal(shape) * 2.0 ** np.arange(-9, 7, 0.25)[:, None]
    source, zero = np.empty(shape, src.code_numpy), np.arange(64) % 5 if format.zero_points else np.zeros(64, np.int64)
    with np.errstate(all="ignore"):
        source[...] = encode(numbers.reshape(-1), resolve(_DOUBLE, src)).reshape(shape)
        values = decode(source.reshape(-1), src).reshape(shape)
        d = np.float32(np.abs(values).max(1) / format.divisor).astype(np.float64)
        if format.scale is _E8M0:
            d = np.exp2(np.floor(np.log2(d)))
        elif format.global_scale:
            d *= 1.1
        quotients = values / d[:, None]
        if integers:
            codes = np.clip(np.rint(quotients) + zero[:, None], float(element.min), float(element.max))
            wanted = (codes.astype(np.int64) & element.code_mask).astype(np.uint8)
        else:
            wanted = encode(quotients.reshape(-1), resolve(_DOUBLE, element)).reshape(shape)
    data, grid = np.empty(shape, np.uint8), BlockGrid((1, *shape), (1, 1, 64), (1, 64, 1))
    native.codes(source, grid, d.reshape(grid.counts), zero.reshape(grid.counts), data)
    found = native.extremes(source, grid)
    lowest, largest = (values, values) if format.two_sided else (np.zeros(shape), np.abs(values))
    limits = np.abs(values).mean(1)
    same = (
        found is not None
        and np.array_equal(found[0].reshape(-1), lowest.min(1, initial=0))
        and np.array_equal(found[1].reshape(-1), largest.max(1, initial=0))
        and np.array_equal(data, wanted)
        and native.beyond(source, grid, limits) == np.count_nonzero(np.abs(values) > limits[:, None])
    )
    return native if same else None


def _blocks(grid: BlockGrid) -> Any:
    shape, lengths, counts = grid.shape, grid.lengths, grid.counts
    if lengths[:2] == (1, 1) and shape[2] % lengths[2] == 0:
        # Rows consist of whole blocks: treat all rows as one, so that short rows cost no calls.
        shape, counts = (1, 1, math.prod(shape)), (1, 1, math.prod(counts))
    return ctypes.byref(_Blocks(*((ctypes.c_uint64 * 3)(*three) for three in (shape, lengths, counts))))


def _array(x: Array, itemsize: int | None = None) -> _Array:
    return _Array(x.ctypes.data, x.itemsize if itemsize is None else itemsize)
