# SPDX-License-Identifier: Apache-2.0
"""Casts among floats by the host's C library, in one pass that also counts what loss reports need."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import STOCHASTIC, CastRule
from gpucast.cpu.encode import decode, encode
from gpucast.cpu.native import library as host_native

Array = npt.NDArray[Any]

_FLOAT = dtype("FLOAT")
#: Elements of a file that are cast at a time: they stay in the second-level cache.
_BLOCK = 1 << 15
#: The most elements of a call: the library counts in 32 bits.
_MOST = 1 << 30


class CastStats(NamedTuple):
    """Statistics of a cast's elements."""

    #: The largest magnitude among the results, as a code. NaN and overflows count as the largest number or more.
    largest: int
    #: How many results are zero (not counting those of NaN), and how many sources.
    zeros: int
    source_zeros: int


class Conversion(ctypes.Structure):
    """``Conversion`` of host_native.h: the constants of a cast."""

    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            "last", "least", "shift", "power", "steps", "half", "odd", "numbers", "nan", "nan_flip", "zero_sign", "sign"
        )
    ]  # fmt: skip


class FilePosition(ctypes.Structure):
    """The position in bytes of the first of some little-endian elements in a file."""

    _fields_ = (("file", ctypes.c_int), ("itemsize", ctypes.c_uint32), ("position", ctypes.c_uint64))

    @staticmethod
    def of(kind: DType, file: int, position: int) -> FilePosition:
        return FilePosition(file, kind.code_numpy.itemsize, position)


class NativeCast:
    """Casts by one rule. Safe to call from several threads."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule) -> None:
        self._function, self._cast_file = library[_name(rule)], library["cast_file"]
        self._function.restype = None
        self._conversion = conversion(rule)

    def __call__(self, x: Array, out: Array) -> CastStats:
        """Cast flat, native codes into all of `out`, which does not overlap them."""
        assert x.size == out.size <= _MOST
        stats = (ctypes.c_uint32 * 3)()
        self._function(_pointer(x), _pointer(out), ctypes.c_uint32(x.size), ctypes.byref(self._conversion), stats)
        return CastStats(*stats)

    def file(self, src: FilePosition, dst: FilePosition, size: int) -> tuple[CastStats, int] | None:
        """Cast `size` elements of a file into another file, or into the same one where they do not overlap.

        Returns the statistics, and the sum of the results as 64-bit words; None if a system call failed, in which case
        some elements may be written.
        """
        assert size <= _MOST
        stats, sums = (ctypes.c_uint32 * 3)(), (ctypes.c_uint64 * 2)()
        buffer = np.empty(_BLOCK * (src.itemsize + dst.itemsize), np.uint8)
        if not self._cast_file(
            self._function, ctypes.byref(self._conversion), src, dst, ctypes.c_uint32(size), _pointer(buffer),
            ctypes.c_uint32(_BLOCK), stats, sums,
        ):  # fmt: skip
            return None
        return CastStats(*stats), sums[0] + (sums[1] << 32)


def look(codes: Array, magnitude: int) -> tuple[int, int] | None:
    """The largest magnitude of flat, native codes, and how many are zero; `magnitude` masks out the sign.

    None without the library.
    """
    library = host_native.library()
    if library is None or codes.size > _MOST:
        return None
    stats = (ctypes.c_uint32 * 2)()
    library[f"look{8 * codes.itemsize}"](
        _pointer(codes), ctypes.c_uint32(codes.size), ctypes.c_uint32(magnitude), stats
    )
    return stats[0], stats[1]


def find(rule: CastRule) -> NativeCast | None:
    """The cast of a rule, or None where the library has none or is not compiled yet."""
    if not is_known(rule):
        return None
    library = host_native.library()
    return None if library is None else _checked(library, rule)


@lru_cache(maxsize=64)
def _checked(library: ctypes.CDLL, rule: CastRule) -> NativeCast | None:
    """The cast, or None if it was compiled wrongly: tried with every exponent and many mantissas."""
    cast, bits = NativeCast(library, rule), rule.src.bits
    codes = (np.arange(1 << 13, dtype=np.uint64) * (0x9E3779B1 if bits == 32 else 1 << 3)).astype(rule.src.code_numpy)
    out = np.empty(codes.size, rule.dst.code_numpy)
    cast(codes, out)
    with np.errstate(all="ignore"):
        return cast if np.array_equal(out, encode(decode(codes, rule.src), rule)) else None


def is_known(rule: CastRule) -> bool:
    """Whether the library has a cast of this rule."""
    src, dst = rule.src, rule.dst
    if rule.rounding == STOCHASTIC or src is dst or dst.family != "float":
        return False
    if not (_is_small(dst) or _is_upper(dst)):
        return False
    return src is _FLOAT or _is_upper(src) or (src.numpy == np.float16 and (_is_upper(dst) or dst.bits <= 8))


def _is_upper(kind: DType) -> bool:
    """Whether a type is FLOAT, or the upper half of a FLOAT."""
    return kind.bits in (16, 32) and kind.exponent_bits == _FLOAT.exponent_bits and kind.specials == _FLOAT.specials


def _is_small(dst: DType) -> bool:
    """Whether a type has so many fewer exponents than FLOAT that one addition can round to its ULP (`small_code`)."""
    largest = (dst.max_code >> dst.mantissa_bits) - dst.bias
    return dst.mantissa_bits <= 10 and max(largest, dst.bias) <= 100


def load(src: DType) -> str:
    """The library's name of a source type."""
    return "float" if src is _FLOAT else "upper_half" if _is_upper(src) else "half"


def _name(rule: CastRule) -> str:
    dst = rule.dst
    return f"{load(rule.src)}_to_{'small' if _is_small(dst) else 'upper'}{max(8, dst.bits)}"


def conversion(rule: CastRule) -> Conversion:
    """The constants of a rule, as the library's functions take them."""
    dst = rule.dst
    last = {"infinity": lambda: dst.inf_code, "nan": lambda: dst.nan_code}.get(rule.overflow, lambda: dst.max_code)()
    shift = _FLOAT.mantissa_bits - dst.mantissa_bits
    first = _FLOAT.bias + 1 - dst.bias
    return Conversion(
        last=_float_bits(dst, last) if _is_small(dst) else last,
        least=first << _FLOAT.mantissa_bits,
        shift=shift,
        power=shift << _FLOAT.mantissa_bits,
        steps=(first + shift) << dst.mantissa_bits,
        half=(1 << shift >> 1) - 1 if shift else 0,
        odd=1 if shift else 0,
        numbers=_FLOAT.max_code if rule.infinity_is_nan else _FLOAT.inf_code,
        nan=dst.nan_code if dst.has_nan else 0,
        nan_flip=not dst.has_nan,
        zero_sign=dst.has_negative_zero,
        sign=dst.bits - 1,
    )


def _float_bits(dst: DType, code: int) -> int:
    """The code of the FLOAT with the exponent and mantissa of a code, even if that code is an infinity or NaN."""
    return (code << (_FLOAT.mantissa_bits - dst.mantissa_bits)) + ((_FLOAT.bias - dst.bias) << _FLOAT.mantissa_bits)


def _pointer(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)
