# SPDX-License-Identifier: Apache-2.0
"""The quick path for NumPy arrays: the same bits as the reference, at the speed of memory where NumPy allows it.

Arrays are cast by compiled code where there is some (`gpucast.cpu.compiled`). Otherwise an array is cast in chunks that
stay in the cache. A *lane* is the function that casts a chunk; it is chosen once per call. There are three kinds:

1. one NumPy pass over the codes, where that does the whole cast: equal types, integers, most casts to BOOL;
2. a table look-up by the source's code, for sources of 16 bits or fewer (`gpucast.cpu.tables`);
3. *load* and *store*: load converts the source to a *compute dtype*, which holds the same numbers and which NumPy is
   fast with (integers, float32, float64); how these are stored depends on the destination's family alone.

A lane that is exact for nearly all elements only finds the others and corrects them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule
from gpucast.cpu import compiled, tables
from gpucast.cpu.chunks import CHUNK, codes_of, flat, gathered, pairs
from gpucast.cpu.encode import decode, encode
from gpucast.cpu.store import Lane, store

Array = npt.NDArray[Any]
Load = Callable[[Array], Array]

#: The size up to which an array is short: NumPy's overhead per call takes longer than the elements.
SHORT = 1 << 11


def apply(x: Array, rule: CastRule, out: Array) -> None:
    """Cast numeric `x` (dtype of ``rule.src``) into all of `out` (dtype of ``rule.dst``, x's shape).

    Any strides and byte orders. `out` must not overlap `x`. Extra memory does not grow with `x`. Safe to call from
    several threads.
    """
    if x.size:
        apply_codes(codes_of(x, rule.src), rule, codes_of(out, rule.dst))


def apply_codes(codes: Array, rule: CastRule, result: Array) -> None:
    """`apply` of arrays that are seen as their codes already, and have elements."""
    views = flat(codes, result)
    if views is not None and codes.size <= SHORT:
        cast = compiled.READY.get(rule) if compiled.READY else None
        if cast is not None:
            cast(*views)
        elif _short_lanes(rule)(*views):
            # Now and then.
            compiled.find(rule, 0)
        return
    cast = compiled.find(rule, codes.nbytes)
    if cast is not None and views is not None:
        cast(*views)
        return
    with np.errstate(all="ignore"):
        lane = cast or _one_pass(rule)
        if lane is not None and views is not None:
            lane(*views)
            return
        chunk = min(codes.size, CHUNK if views is None else chunk_of(rule))
        lane = lane or _lane(rule, codes.size, chunk)
        chunks = gathered(codes, result, chunk) if views is None else pairs(*views, chunk)
        for source, results in chunks:
            lane(source, results)


def by_numpy(codes: Array, rule: CastRule, result: Array) -> None:
    """Cast at most `SHORT` flat, native codes without compiled code."""
    _short_lanes(rule)(codes, result)


def lane(rule: CastRule, size: int, chunk: int) -> Lane:
    """The lane by which `apply` casts an array of `size` elements, for callers that cut the array up themselves.

    Call it with flat, native codes, at most `chunk` at a time, while NumPy's floating-point errors are ignored. It has
    scratch memory, so only one thread may use it.
    """
    if size <= SHORT:
        short = _short_lanes(rule)
        return lambda x, out: _discard(short(x, out))
    return compiled.find(rule, size * rule.src.code_numpy.itemsize) or _one_pass(rule) or _lane(rule, size, chunk)


class _ShortLanes:
    """Reusable lanes of one rule for short arrays, for which making a lane takes longer than using it.

    A lane has scratch memory, so only one call uses it at a time.
    """

    #: The cost of a call, counted in elements, and that from which compiled code is looked for.
    _CALL, _MANY = 64, 1 << 14

    def __init__(self, rule: CastRule) -> None:
        self._rule = rule
        self._free: list[Lane] = []
        self._elements = self._next = 0

    def __call__(self, x: Array, out: Array) -> bool:
        """Cast. True after so many calls that compiled code pays, but seldom, because to look for it takes long."""
        # Which lane, and which table, pays off depends on how many elements have been cast so far.
        self._elements += x.size + self._CALL
        has_doubled = self._elements >= self._next
        if has_doubled:
            self._next = 2 * self._elements
            self._free = []
        free = self._free
        try:
            lane = free.pop()
        except IndexError:
            lane = _silent(self._make)
        lane(x, out)
        # Lanes to BOOL depend on the thread: it may treat subnormal numbers as zero.
        if self._rule.dst.family != "bool":
            free.append(lane)
        return has_doubled and self._elements >= self._MANY

    def _make(self) -> Lane:
        return _one_pass(self._rule) or _lane(self._rule, self._elements, SHORT)


def _silent(make: Callable[[], Lane]) -> Lane:
    """The lane that `make` returns, run in a context in which floating-point errors are ignored.

    This takes a fraction of the time of `numpy.errstate`.
    """
    context = Context()
    context.run(np.seterr, all="ignore")
    lane = context.run(make)
    return lambda x, out: context.run(lane, x, out)


_short_lanes = lru_cache(maxsize=tables.KEPT)(_ShortLanes)


def chunk_of(rule: CastRule) -> int:
    """The chunk size, in elements, that is quickest for a cast."""
    src, dst = rule.src, rule.dst
    if src.name == "FLOAT" and dst.is_float and dst.bits <= 16 and not _is_bfloat16(dst):
        # This lane has several scratch arrays of 4 or 8 bytes per element.
        return CHUNK // 2
    # Casts among short integers need no wide scratch arrays, so larger chunks are better: they need fewer calls.
    itemsize = max(src.code_numpy.itemsize, dst.code_numpy.itemsize)
    return CHUNK if src.is_float or dst.is_float or itemsize > 2 else 2 * CHUNK // itemsize


def table_driven(rule: CastRule) -> bool:
    """True where large arrays are cast by looking up the source's code."""
    return _one_pass(rule) is None and rule.dst.family != "bool" and rule.src.bits <= 16 and not _is_converted(rule)


def _is_converted(rule: CastRule) -> bool:
    """True for a source of at most 16 bits that NumPy converts more quickly than a table look-up would."""
    wide = rule.dst.family == "int" or rule.dst.bits > 16
    if rule.src.is_float:
        plain = rule.dst.family != "int" or (rule.rounding == "truncate" and rule.overflow == "wrap")
        return _is_bfloat16(rule.src) and wide and plain
    return wide or _is_bfloat16(rule.dst)


def _lane(rule: CastRule, size: int, chunk: int) -> Lane:
    """The lane for an array of `size` elements, in chunks of at most `chunk`."""
    src, dst = rule.src, rule.dst
    if dst.family == "bool":
        return _to_bool(src, chunk)
    if src.bits <= 16 and not _is_converted(rule):
        return _look_up(rule, size, chunk)
    if src.is_float and src.bits <= 16 and dst.family == "int" and size >= 1 << src.bits:
        if tables.astype_keeps_low_bits(rule):
            return _astype_low_bits(rule)
    if src.packed and not dst.packed and dst.bits == 8 and rule.overflow == "wrap":
        return lambda x, out: _discard(_extend(x, src, out))
    load, compute_dtype = _load(rule, chunk)
    put = store(compute_dtype, rule, size, chunk)
    return lambda x, out: put(load(x), out)


# ---- one pass over arrays of any length ----


def _one_pass(rule: CastRule) -> Lane | None:
    """The lane of a pair that needs only one NumPy call and no scratch memory, else None."""
    src, dst = rule.src, rule.dst
    bytes_only = src.code_numpy.itemsize == dst.code_numpy.itemsize == 1
    if dst.family == "bool" and src.family == "e8m0":  # It has no zero.
        return lambda x, out: out.fill(1)
    if dst.family == "bool" and src.family == "float" and src.bits > 16 and not _subnormals_are_zero():
        return lambda x, out: _discard(np.not_equal(x.view(src.numpy), 0, out=out.view(bool)))
    if (dst.family == "bool" and _zero_mask(src) == np.iinfo(src.code_numpy).max) or (
        src.family == "bool" and dst.family == "int" and bytes_only
    ):
        return lambda x, out: _discard(np.not_equal(x, 0, out=out.view(bool)))
    low_bits = src.family == dst.family == "int" and bytes_only and rule.overflow == "wrap" and src.bits >= dst.bits
    if src is dst or low_bits:
        if dst.packed:
            return lambda x, out: _discard(np.bitwise_and(x, dst.code_mask, out=out))
        return lambda x, out: np.copyto(out, x)
    if is_astype(rule):
        return lambda x, out: np.copyto(out.view(dst.numpy), x.view(src.numpy), casting="unsafe")
    return None


def is_astype(rule: CastRule) -> bool:
    """Whether NumPy's own cast has the same results, and warns of none.

    NumPy truncates integers to their low bits, and rounds them to floats once, to nearest even. ml_dtypes does so for
    integers that are exact in float32. None of them can be out of range.
    """
    src, dst = rule.src, rule.dst
    if src.family != "int" or src.packed:
        return False
    if dst.family == "int":
        return not dst.packed and rule.overflow == "wrap"
    return dst.family == "float" and (dst.bits > 16 or (_is_bfloat16(dst) and src.bits <= 16))


def is_copy(rule: CastRule) -> bool:
    """Whether the results are the same bytes; those of BOOL and of types below one byte may hold more than a code."""
    return rule.src is rule.dst and not (rule.dst.packed or rule.dst.family == "bool")


def _zero_mask(dtype: DType) -> int:
    """A mask of bits that are all clear only in the codes of zero and negative zero."""
    return dtype.code_mask & ~(dtype.sign_code if dtype.has_negative_zero else 0)


def _to_bool(src: DType, chunk: int) -> Lane:
    scratch = np.empty(chunk, src.code_numpy)

    def lane(x: Array, out: Array) -> None:
        np.not_equal(np.bitwise_and(x, _zero_mask(src), out=scratch[: x.size]), 0, out=out.view(bool))

    return lane


def _subnormals_are_zero() -> bool:
    """True in a thread in which some library has made the processor read subnormal numbers as zero."""
    return bool(np.array([1], np.uint32).view(np.float32)[0] == 0)


def _discard(_: Any) -> None:
    """Drop a return value: the result is in `out`."""


# ---- tables ----


def _look_up(rule: CastRule, size: int, chunk: int) -> Lane:
    if tables.too_long(1 << rule.src.bits, size):
        return lambda x, out: np.copyto(out, encode(decode(x, rule.src), rule))
    table = tables.by_code(rule)
    if table.size > 256 or table.itemsize == 8 or tables.too_long(1 << 16, size):
        return _take(table, chunk)
    pairs = tables.by_pair(rule)
    index = np.empty(chunk // 2, np.intp)

    def lane(x: Array, out: Array) -> None:
        half = x.size // 2
        np.copyto(index[:half], x[: 2 * half].view(np.uint16))
        pairs.take(index[:half], out=out[: 2 * half].view(pairs.dtype), mode="clip")
        if x.size % 2:
            out[-1] = table[x[-1]]

    return lane


def _take(table: Array, chunk: int) -> Lane:
    index = np.empty(chunk, np.intp)

    def lane(x: Array, out: Array) -> None:
        np.copyto(index[: x.size], x)
        # No index is out of range; "clip" avoids the separate pass in which "raise" checks them.
        table.take(index[: x.size], out=out, mode="clip")

    return lane


def _astype_low_bits(rule: CastRule) -> Lane:
    dst = rule.dst

    def lane(x: Array, out: Array) -> None:
        np.copyto(out, x.view(rule.src.numpy), casting="unsafe")
        if dst.packed:
            np.bitwise_and(out, dst.code_mask, out=out)

    return lane


# ---- load: codes -> compute dtype ----


def _load(rule: CastRule, chunk: int) -> tuple[Load, np.dtype[Any]]:
    """The function that converts source codes to the compute dtype, and that dtype."""
    src = rule.src
    if src.family == "bool":
        truth = np.empty(chunk, bool)
        return lambda x: np.not_equal(x, 0, out=truth[: x.size]).view(np.uint8), np.dtype(np.uint8)
    if src.packed:
        extended = np.empty(chunk, np.uint8)
        compute_dtype = np.dtype(np.int8 if src.signed else np.uint8)
        return lambda x: _extend(x, src, extended[: x.size]).view(compute_dtype), compute_dtype
    if _is_bfloat16(src) and rule.dst.family == "int":
        widened = np.empty(chunk, np.float32)

        def widen(x: Array) -> Array:
            value = widened[: x.size]
            np.copyto(value, x.view(src.numpy), casting="unsafe")
            return value

        return widen, widened.dtype
    return lambda x: x.view(src.numpy), src.numpy


def _extend(x: Array, src: DType, out: Array) -> Array:
    """Zero- or sign-extend codes of fewer than 8 bits to 8 bits."""
    np.bitwise_and(x, src.code_mask, out=out)
    if src.signed:
        np.bitwise_xor(out, src.sign_code, out=out)
        np.subtract(out, src.sign_code, out=out)
    return out


def _is_bfloat16(dtype: DType) -> bool:
    return bool(dtype.numpy == ml_dtypes.bfloat16)
