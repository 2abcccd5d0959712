# SPDX-License-Identifier: Apache-2.0
"""Blocks by the library of `gpucast.host_native`: their extremes, and the codes of quotients, for most float formats.

Where it has no answer (infinities and NaN among the numbers, zero points, a global scale), NumPy has one.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpucast import host_native, host_native_cast
from gpucast.dtypes import DType, dtype
from gpucast.host_codes import decode, encode
from gpucast.quantization.boxes import Plan
from gpucast.quantization.formats import Format
from gpucast.rule import resolve

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE, _E8M0 = dtype("FLOAT"), dtype("DOUBLE"), dtype("FLOAT8E8M0")
#: A call for each row of a block: shorter ones are quicker in NumPy.
_SHORTEST = 16
#: `SHORT` of host_native.c.
_COUNTS = 32


class _Blocks(ctypes.Structure):
    """`Blocks` of host_native.c."""

    _fields_ = [(name, ctypes.c_uint64 * 3) for name in ("shape", "lengths", "grid")]


class _Array(ctypes.Structure):
    """`Array` of host_native.c."""

    _fields_ = (("first", ctypes.c_void_p), ("itemsize", ctypes.c_uint64))


class _Quotient(ctypes.Structure):
    """`Quotient` of host_native.c."""

    _fields_ = (("row", host_native_cast.Row), ("zeros", ctypes.c_uint32), ("divisor", ctypes.c_uint32))


class Native:
    """What the library does for the arrays of one type that go to one format."""

    def __init__(self, library: ctypes.CDLL, src: DType, format: Format) -> None:
        rule = resolve(src, format.element)
        self._each, self._largest = library["each_run"], library[f"largest_of_{src.bits}"]
        #: Powers of two from 2^-127 to 2^127 have reciprocals that FLOAT holds.
        self._powers = format.scale is _E8M0
        self._codes = library[f"{host_native_cast.load(src)}_{'multiplied' if self._powers else 'divided'}"]
        self._beyond = library[f"{host_native_cast.load(src)}_beyond"]
        # A midpoint of two codes has two significant bits more than their mantissa.
        zeros = (1 << (_FLOAT.mantissa_bits - 1 - format.element.mantissa_bits)) - 1
        divisor = int(np.float32(format.divisor).view(np.uint32))
        self._quotient = _Quotient(host_native_cast.row(rule), zeros, divisor)
        self._src = src

    def extremes(self, source: Array, plan: Plan) -> tuple[Array, Array, Array] | None:
        """As `gpucast.quantization.host_extremes.extremes`; None for an array with an infinity or NaN."""
        high = np.zeros(plan.grid, self._src.code_numpy)
        self._each(self._largest, _array(source), _array(source), _blocks(plan), _array(high), None)
        if high.max(initial=0) > self._src.max_code:
            return None
        none = np.zeros(plan.grid)
        return none, high.view(self._src.numpy).astype(np.float64), np.zeros(plan.grid, bool)

    def codes(self, source: Array, plan: Plan, d: Array, data: Array) -> None:
        """Write the codes of all quotients by the blocks' `d`."""
        of_blocks = (1 / d if self._powers else d).astype(np.float32)
        self._each(
            self._codes, _array(source), _array(data), _blocks(plan), _array(of_blocks), ctypes.byref(self._quotient)
        )

    def beyond(self, source: Array, plan: Plan, limits: Array) -> int:
        """How many numbers of an array without NaN are larger, as magnitudes, than the limits of their blocks, which
        are DOUBLE, not negative."""
        with np.errstate(over="ignore"):
            nearest = limits.astype(np.float32)
        # The largest FLOAT that is no more.
        below = nearest.view(np.uint32) - (nearest > limits).astype(np.uint32)
        counts = np.zeros(_COUNTS, np.uint32)
        x, more = _array(source), ctypes.c_void_p(counts.ctypes.data)
        self._each(self._beyond, x, x, _blocks(plan), _array(below), more)
        return int(counts.sum(dtype=np.uint64))


def find(source: Array, plan: Plan, format: Format) -> Native | None:
    """What quantizes a native, contiguous array; None where NumPy has to."""
    element, src = format.element, dtype(source.dtype)
    if element.family != "float" or format.global_scale or src is _DOUBLE or not source.size:
        return None
    if plan.lengths[2] < min(_SHORTEST, plan.shape[2]) or plan.shape[2] >= 1 << 32:
        return None
    library = host_native.library()
    return None if library is None else _checked(library, src, format)


@lru_cache(maxsize=64)
def _checked(library: ctypes.CDLL, src: DType, format: Format) -> Native | None:
    """None where the library has no such cast, or the compiler computed what it was not told."""
    if not host_native_cast.is_known(resolve(src, format.element)):
        return None
    native, shape = Native(library, src, format), (64, 64)
    numbers = np.random.default_rng(0).standard_normal(shape) * 2.0 ** np.arange(-9, 7, 0.25)[:, None]
    source = np.empty(shape, src.code_numpy)
    with np.errstate(all="ignore"):
        source[...] = encode(numbers.reshape(-1), resolve(_DOUBLE, src)).reshape(shape)
        values = decode(source.reshape(-1), src).reshape(shape)
        d = 2.0 ** np.arange(64) / 2.0**32 if native._powers else np.float32(np.abs(values).max(1) / format.divisor)
        wanted = encode((values / d.astype(np.float64)[:, None]).reshape(-1), resolve(_DOUBLE, format.element))
    data, plan = np.empty(shape, np.uint8), Plan((1, *shape), (1, 1, 64), (1, 64, 1))
    native.codes(source, plan, d, data)
    found = native.extremes(source, plan)
    same = found is not None and np.array_equal(found[1].reshape(-1), np.abs(values).max(1))
    same &= np.array_equal(data.reshape(-1), wanted)
    limits = np.abs(values).mean(1)
    same &= native.beyond(source, plan, limits) == np.count_nonzero(np.abs(values) > limits[:, None])
    return native if same else None


def _blocks(plan: Plan) -> Any:
    shape, lengths, grid = plan.shape, plan.lengths, plan.grid
    if lengths[:2] == (1, 1) and shape[2] % lengths[2] == 0:
        # No block ends with its row alone: one run, however short the rows are.
        shape, grid = (1, 1, math.prod(shape)), (1, 1, math.prod(grid))
    return ctypes.byref(_Blocks(*((ctypes.c_uint64 * 3)(*three) for three in (shape, lengths, grid))))


def _array(x: Array) -> _Array:
    return _Array(x.ctypes.data, x.itemsize)
