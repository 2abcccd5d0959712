# SPDX-License-Identifier: Apache-2.0
"""Casts with a scale, or that look at their source, by the host's compiled library."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpucast.codegen.host import fused_unit
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, CastRule, has_stochastic, resolve
from gpucast.cpu import fused as host_fused
from gpucast.cpu import lanes
from gpucast.cpu.chunks import spans
from gpucast.native import cast as native_cast
from gpucast.native import library as host_native
from gpucast.native import stochastic as native_stochastic
from gpucast.native import threads
from gpucast.native.calls import pointer

Array = npt.NDArray[Any]

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: As in ``kernels/host/fused.hpp``.
_NONE, _FLOATS, _ODD_FLOATS, _DOUBLES = range(4)
#: Scales by which a cast is tried: two that FLOAT holds, others, and what makes NaN of infinities.
_TRIED = (2.0**-10, float(np.float32(0.1)), 0.1, 3.0e38, 1e-300, 0.0)


class Arguments(ctypes.Structure):
    """``Fused`` of ``kernels/host/fused.hpp``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("to_floats", "to_doubles", "cast", "cast_at_random")),
        ("src_bytes", ctypes.c_uint64),
        ("dst_bytes", ctypes.c_uint64),
        ("scale", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("product", ctypes.c_uint32),
        ("is_exact", ctypes.c_uint32),
    )


class _Parts(NamedTuple):
    """Addresses of the functions that a fused cast calls, 0 for none, and what the products are for `cast`."""

    to_floats: int
    to_doubles: int
    cast: int
    cast_at_random: int
    product: int


class FusedCast:
    """Casts by one rule, of products with a scale or not. Safe to call from several threads."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule, parts: _Parts) -> None:
        self._library, self._rule, self._parts = library, rule, parts
        self._is_exact = _is_exact(rule.src)
        self._multiplies_floats = (
            self._is_exact and rule.dst is _FLOAT and rule.overflow == "infinity" and parts.product != _NONE
        )

    def __call__(self, x: Array, out: Array, fused: FusedInputs) -> tuple[int, bool]:
        """As `compiled.FusedCast`."""
        assert x.size == out.size
        with_ = self._arguments(fused)
        src, dst, random = pointer(x).value or 0, pointer(out).value or 0, fused.random or Random(0)
        found: list[tuple[int, bool]] = []

        def work(start: int, stop: int) -> None:
            first, skip = divmod(random.offset + start, 4)
            largest, finite = ctypes.c_uint32(0), ctypes.c_uint8(1)
            self._library.cast_fused(
                ctypes.byref(with_),
                *map(ctypes.c_void_p, (src + start * with_.src_bytes, dst + start * with_.dst_bytes)),
                *map(ctypes.c_uint64, (stop - start, first, skip)),
                None if fused.amax is None else ctypes.byref(largest),
                None if fused.finite is None else ctypes.byref(finite),
            )
            found.append((largest.value, bool(finite.value)))

        threads.split(work, x.size, x.nbytes + out.nbytes)
        largest = max(largest for largest, _ in found)
        return largest if largest <= _FLOAT.inf_code else _FLOAT.nan_code, all(finite for _, finite in found)

    def each(self, src: Any, to: Any, sizes: Any, count: Any, fused: FusedInputs) -> None:
        """Cast so many arrays, whose addresses and sizes are in tables."""
        finite = None if fused.finite is None else pointer(fused.finite)
        self._library.fuse_each(ctypes.byref(self._arguments(fused)), src, to, sizes, count, finite)

    def _arguments(self, fused: FusedInputs) -> Arguments:
        parts, rule = self._parts, self._rule
        if self._multiplies_floats and fused.scaling == "narrow":
            # The product of two FLOATs is rounded once.
            parts = parts._replace(cast=0, product=_FLOATS)
        return Arguments(
            *parts[:4],
            rule.src.code_numpy.itemsize,
            rule.dst.code_numpy.itemsize,
            0.0 if fused.scale is None else fused.scale,
            0 if fused.random is None else fused.random.seed,
            parts.product,
            self._is_exact,
        )


def find(rule: CastRule, is_scaled: bool, nbytes: int = 0) -> FusedCast | None:
    """The cast by a rule that `is_known`; None where it is not compiled. `nbytes`: of sources about to be cast."""
    library = host_native.library(fused_unit, nbytes=nbytes)
    parts = _parts(rule, is_scaled, nbytes)
    return None if library is None or parts is None else _checked(library, rule, parts)


def is_known(rule: CastRule, is_scaled: bool) -> bool:
    """Whether the library has this cast. What only looks at the source, and keeps its type, NumPy does quickly."""
    return is_scaled or rule.src is not rule.dst


def _parts(rule: CastRule, is_scaled: bool, nbytes: int) -> _Parts | None:
    src, is_random = rule.src, rule.rounding == STOCHASTIC
    product, last = _NONE, rule
    if is_scaled:
        # Short floats take products that are rounded to odd; there infinity and numbers beyond FLOAT's are the same.
        is_odd = has_stochastic(rule.dst) and not (is_random or rule.infinity_is_nan)
        product, last = (_ODD_FLOATS, replace(rule, src=_FLOAT)) if is_odd else (_DOUBLES, replace(rule, src=_DOUBLE))
    to_floats, to_doubles = resolve(src, _FLOAT), None if _is_exact(src) else resolve(src, _DOUBLE)
    floats, doubles, cast = (_address(one, nbytes) for one in (to_floats, to_doubles, last))
    if floats is None or doubles is None or cast is None:
        return None
    return _Parts(floats, doubles, *((0, cast) if is_random else (cast, 0)), product)


def _address(rule: CastRule | None, nbytes: int) -> int | None:
    """The address of a cast, 0 where there is nothing to do; None where it is not compiled."""
    if rule is None or rule.src is rule.dst:
        return 0
    cast = (native_stochastic if rule.rounding == STOCHASTIC else native_cast).find(rule, nbytes)
    return None if cast is None else ctypes.cast(cast.function, ctypes.c_void_p).value


def _is_exact(src: DType) -> bool:
    """Whether FLOAT holds every number of a type."""
    return src is _FLOAT or src.bits <= 16


@lru_cache(maxsize=1024)
def _checked(library: ctypes.CDLL, rule: CastRule, parts: _Parts) -> FusedCast | None:
    """The cast, or None if it was compiled wrongly: it does what NumPy does to every exponent and many mantissas."""
    cast, all_codes = FusedCast(library, rule, parts), native_cast.codes_to_try(rule.src)
    scales = (None,) if parts.product == _NONE else _TRIED
    # A part of them has no NaN, and is finite.
    for codes, scale in itertools.product((all_codes, all_codes[: all_codes.size // 8]), scales):
        out, wanted = np.empty((2, codes.size), rule.dst.code_numpy)
        random = native_stochastic.TRIED if rule.rounding == STOCHASTIC else None
        given = FusedInputs(scale, np.zeros((), np.float32), np.ones((), np.uint8), random)
        found = cast(codes, out, given)
        for part in spans(codes.size, lanes.SHORT):
            own = given._replace(random=random and random._replace(offset=random.offset + part.start))
            host_fused.one_pass(codes[part].view(rule.src.numpy), rule, own, wanted[part].view(rule.dst.numpy))
        if found != (given.amax.view(np.uint32), given.finite) or not np.array_equal(out, wanted):
            return None
    return cast
