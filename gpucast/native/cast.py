# SPDX-License-Identifier: Apache-2.0
"""Casts by the host's compiled library: plain ones of every pair and rule, and those that count for loss reports."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.codegen.cast import kernel_name
from gpucast.codegen.host import HostUnit, cast_unit, counted_unit, file_unit
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.options import DEFAULT_OPSET, Options
from gpucast.core.rule import ROUND_MODE_SINCE, ROUND_MODES, ROUNDINGS, STOCHASTIC, CastRule, resolve
from gpucast.cpu import compiled, lanes
from gpucast.cpu.chunks import spans
from gpucast.native import calls, threads
from gpucast.native import library as host_native
from gpucast.native.calls import pointer

Array = npt.NDArray[Any]

_NUMERIC = tuple(kind for kind in DTYPES if kind.family != "string")
_COUNTED = tuple(map(dtype, ("FLOAT", "BFLOAT16", "FLOAT16")))
#: Elements of a file that are cast at a time: they stay in the second-level cache.
_BLOCK = 1 << 15
#: The most elements of a call that counts: in 32 bits.
_MOST = 1 << 30
#: Codes with which a cast is tried, at most.
_TRIED = 1 << 13


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


class NativeCast:
    """Casts by one rule. Safe to call from several threads."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule) -> None:
        self._library, self._rule = library, rule
        self.function = library[kernel_name(rule)]
        self.function.argtypes, self.function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64), None
        self._src_itemsize, self._dst_itemsize = rule.src.code_numpy.itemsize, rule.dst.code_numpy.itemsize

    def __call__(self, x: Array, out: Array) -> None:
        """As `compiled.CompiledCast`."""
        size = x.size
        assert size == out.size
        if size <= lanes.SHORT:
            self.function(pointer(x), pointer(out), size)
        else:
            self.at(pointer(x).value or 0, pointer(out).value or 0, size)

    def quicker(self, run: compiled.Run) -> compiled.Run:
        """As `compiled.CompiledCast.quicker`."""
        return calls.of_arrays(self._library, self.function, self._rule, run)

    def of_tensors(self, view: int, empty_like: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
        """As `compiled.CompiledCast.of_tensors`."""
        return calls.of_tensors(self._library, self.function, self._rule, view, empty_like)

    def at(self, src: int, dst: int, size: int) -> None:
        """As `compiled.CompiledCast.at`."""
        if size <= lanes.SHORT:
            self.function(src, dst, size)
            return

        def work(start: int, stop: int) -> None:
            self.function(src + start * self._src_itemsize, dst + start * self._dst_itemsize, stop - start)

        threads.split(work, size, size * (self._src_itemsize + self._dst_itemsize))


class CountedCast:
    """Casts by one rule, among floats, and counts. Safe to call from several threads."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule) -> None:
        self._function = library[f"{kernel_name(rule)}_counted"]
        self._function.restype = None

    def __call__(self, x: Array, out: Array) -> CastStats:
        """Cast flat, native codes into all of `out`, which does not overlap them."""
        assert x.size == out.size <= _MOST
        stats = (ctypes.c_uint32 * 3)()
        self._function(pointer(x), pointer(out), ctypes.c_uint64(x.size), stats)
        return CastStats(*stats)

    def file(self, src: FilePosition, dst: FilePosition, size: int) -> tuple[CastStats, int] | None:
        """Cast `size` elements of a file into another file, or into the same one where they do not overlap.

        Returns the statistics, and the sum of the results as 64-bit words; None if a system call failed, in which case
        some elements may be written, or if the functions for files are not compiled yet.
        """
        assert size <= _MOST
        library = host_native.library(file_unit)
        if library is None:
            return None
        stats, sums = (ctypes.c_uint32 * 3)(), (ctypes.c_uint64 * 2)()
        buffer = np.empty(_BLOCK * (src.itemsize + dst.itemsize), np.uint8)
        if not library.cast_file(
            self._function, src, dst, ctypes.c_uint32(size), pointer(buffer), ctypes.c_uint32(_BLOCK), stats, sums
        ):
            return None
        return CastStats(*stats), sums[0] + (sums[1] << 32)


def look(codes: Array, magnitude: int) -> tuple[int, int] | None:
    """The largest magnitude of flat, native codes, and how many are zero; `magnitude` masks out the sign.

    None without the library.
    """
    library = host_native.library(file_unit)
    if library is None or codes.size > _MOST:
        return None
    stats = (ctypes.c_uint32 * 2)()
    library[f"look{8 * codes.itemsize}"](pointer(codes), ctypes.c_uint32(codes.size), ctypes.c_uint32(magnitude), stats)
    return stats[0], stats[1]


def find(rule: CastRule, nbytes: int = 0) -> NativeCast | None:
    """The cast of a rule, which `gpucast.cpu.compiled` then has ready, or None where there is none or it is not
    compiled; `nbytes`: bytes of sources about to be cast."""
    if not is_known(rule):
        return None
    library = host_native.library(_unit, rule.src, rule == _default(rule.src, rule.dst), nbytes=nbytes)
    cast = None if library is None else _checked(NativeCast, library, rule)
    if cast is not None:
        compiled.keep(rule, cast)
    return cast


def find_counted(rule: CastRule, nbytes: int = 0) -> CountedCast | None:
    """The cast of a rule that counts; as `find`."""
    if not is_counted(rule):
        return None
    library = host_native.library(_counted_unit, rule.src, nbytes=nbytes)
    return None if library is None else _checked(CountedCast, library, rule)


def announce(rule: CastRule, nbytes: int) -> None:
    """Say that this many bytes of files are about to be cast by a rule, which may be worth a compiler's time."""
    if is_counted(rule):
        find_counted(rule, nbytes)
        host_native.library(file_unit, nbytes=nbytes)


def is_known(rule: CastRule) -> bool:
    """Whether the library has a cast of this rule. NumPy copies what keeps its type, as quickly as memory allows."""
    return rule.src is not rule.dst and rule.rounding != STOCHASTIC and rule.src in _NUMERIC and rule.dst in _NUMERIC


def is_counted(rule: CastRule) -> bool:
    """Whether the library has a cast of this rule that counts: from what checkpoints hold to any other float."""
    return is_known(rule) and rule.src in _COUNTED and rule.dst.family == "float" and rule.dst.bits <= 32


def _unit(src: DType, is_default: bool) -> HostUnit:
    """The casts from one source to all others: by their default rules, or by all the others."""
    return cast_unit([rule for rule in _rules(src) if (rule == _default(src, rule.dst)) == is_default])


def _counted_unit(src: DType) -> HostUnit:
    return counted_unit(list(filter(is_counted, _rules(src))))


@lru_cache(maxsize=32)
def _rules(src: DType) -> tuple[CastRule, ...]:
    """Every rule that leads away from a type."""
    found = dict.fromkeys(_default(src, dst) for dst in _NUMERIC)
    # The last opset by whose rules infinity becomes NaN, and the newest.
    opsets = (ROUND_MODE_SINCE - 1, DEFAULT_OPSET)
    choices = itertools.product(_NUMERIC, (True, False), ROUND_MODES, opsets, (None, *ROUNDINGS), (None, "saturate"))
    for dst, saturate, round_mode, opset, rounding, overflow in choices:
        try:
            rule = resolve(src, dst, Options(saturate, round_mode, opset, rounding, overflow))
        except (TypeError, ValueError):
            # These do not go together.
            continue
        found[rule] = None
    return tuple(filter(is_known, found))


@lru_cache(maxsize=1024)
def _default(src: DType, dst: DType) -> CastRule:
    return resolve(src, dst)


@lru_cache(maxsize=1024)
def _checked(kind: Any, library: ctypes.CDLL, rule: CastRule) -> Any:
    """The cast, or None if it was compiled wrongly: it does what NumPy does to every exponent and many mantissas."""
    cast, codes = kind(library, rule), codes_to_try(rule.src)
    out, wanted = np.empty((2, codes.size), rule.dst.code_numpy)
    cast(codes, out)
    for part in spans(codes.size, lanes.SHORT):
        lanes.by_numpy(codes[part], rule, wanted[part])
    return cast if np.array_equal(out, wanted) else None


@lru_cache(maxsize=32)
def codes_to_try(src: DType) -> Array:
    """Codes to try casts with: all of 8 bits, and of more bits some of all exponents, more of them near 1."""
    if src.bits <= 8:
        # More than the library casts without a table.
        return np.arange(1 << 10, dtype=np.uint16).astype(np.uint8)
    # The golden ratio spreads multiples evenly.
    spread = np.arange(_TRIED, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    codes = spread >> np.uint64(64 - src.bits)
    if src.bits == 64:
        near = codes[::2]
        if src.is_float:
            near &= np.uint64((1 << 63) | ((1 << 52) - 1))
            near |= (np.uint64(src.bias) + spread[::2] % np.uint64(300) - np.uint64(150)) << np.uint64(52)
        else:
            near >>= spread[::2] % np.uint64(64)
    # In order, because products are rounded in another way where a block has NaN or very small numbers.
    return np.sort(codes.astype(src.code_numpy))
