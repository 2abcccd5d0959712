# SPDX-License-Identifier: Apache-2.0
"""Casts from file to file, checksums and statistics of codes for conversions of files.

Each function gives None where the extension module is missing; then NumPy does the work.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.extension import MODULE
from gpucast.core.rule import CastRule
from gpucast.host import loops
from gpucast.kernel.host_units import is_counted

NDArray = npt.NDArray[Any]

#: Elements of a file that are cast at a time: they stay in the second-level cache.
_BLOCK = 1 << 15
#: The most elements of a call: they are counted in 32 bits.
_MOST = 1 << 30


class CastStats(NamedTuple):
    """Statistics of a cast's elements."""

    #: The largest magnitude among the results, as a code. NaN and overflows count as the largest number or more.
    largest: int
    #: How many results are zero, meaningless where a source is NaN; and how many sources.
    zeros: int
    source_zeros: int


class FilePosition(ctypes.Structure):
    """The position in bytes of the first of some little-endian elements in a file."""

    _fields_ = (("file", ctypes.c_int), ("itemsize", ctypes.c_uint32), ("position", ctypes.c_uint64))

    @staticmethod
    def of(kind: DType, file: int, position: int) -> FilePosition:
        return FilePosition(file, kind.code_numpy.itemsize, position)


class CountedCast:
    """Casts by one rule, among floats, and counts. Safe to call from several threads."""

    def __init__(self, rule: CastRule) -> None:
        self._address = loops.find(f"{rule.function}_counted")
        self._function = _function(f"{rule.function}_counted", None)

    def __call__(self, x: NDArray, out: NDArray) -> CastStats:
        """Cast flat, native codes into all of `out`, which does not overlap them."""
        assert x.size == out.size <= _MOST
        stats = (ctypes.c_uint32 * 3)()
        self._function(_at(x), _at(out), ctypes.c_uint64(x.size), stats)
        return CastStats(*stats)

    def file(self, src: FilePosition, dst: FilePosition, size: int) -> tuple[CastStats, int] | None:
        """Cast `size` elements of a file into another file, or into the same one where they do not overlap.

        Returns the statistics, and the sum of the results as 64-bit words; None if a system call failed, in which case
        some elements may be written.
        """
        assert size <= _MOST
        stats, sums = (ctypes.c_uint32 * 3)(), (ctypes.c_uint64 * 2)()
        buffer = np.empty(_BLOCK * (src.itemsize + dst.itemsize), np.uint8)
        if not _function("cast_file", ctypes.c_int)(
            ctypes.c_void_p(self._address), src, dst, ctypes.c_uint32(size), _at(buffer), ctypes.c_uint32(_BLOCK),
            stats, sums,
        ):  # fmt: skip
            return None
        return CastStats(*stats), sums[0] + (sums[1] << 32)


def counted(rule: CastRule) -> CountedCast | None:
    """The cast by a rule that counts; None where there is none."""
    return _counted(rule) if MODULE is not None and is_counted(rule) else None


_counted = lru_cache(maxsize=256)(CountedCast)


def look(codes: NDArray, magnitude: int) -> tuple[int, int] | None:
    """The largest magnitude of flat, native codes of at most 32 bits, and how many are zero; `magnitude` masks out the
    sign."""
    if MODULE is None or codes.size > _MOST:
        return None
    stats = (ctypes.c_uint32 * 2)()
    function = _function(f"look{8 * codes.itemsize}", None)
    function(_at(codes), ctypes.c_uint32(codes.size), ctypes.c_uint32(magnitude), stats)
    return stats[0], stats[1]


def sum_words(raw: NDArray) -> int | None:
    """The sum of bytes as 64-bit words, not reduced modulo anything. They are a multiple of 8."""
    if MODULE is None:
        return None
    halves = (ctypes.c_uint64 * 2)()
    _function("sum_words", None)(_at(raw), ctypes.c_uint64(raw.size // 8), halves)
    return halves[0] + (halves[1] << 32)


@lru_cache(maxsize=256)
def _function(name: str, result: Any) -> Any:
    # By its address: arguments say by their own types what they are.
    return ctypes.CFUNCTYPE(result)(loops.find(name))


def _at(x: NDArray) -> ctypes.c_void_p:
    """The address of the first element; the array has to live as long as it is used."""
    return ctypes.c_void_p(x.ctypes.data)
