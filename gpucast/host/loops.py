# SPDX-License-Identifier: Apache-2.0
"""The loops of the extension module: which one casts by a rule, and the description of a cast for the module."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import lru_cache

from gpucast.core.dtypes import dtype
from gpucast.core.extension import MODULE
from gpucast.core.fuse import EMPTY, Fuse, Scaling, scaling_of
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import BY_RULE_SOURCES, CastRule, has_stochastic, resolve

_FLOAT, _DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: `WorkKind` of ``kernels/host/work.hpp``.
_PLAIN, _AT_RANDOM, _FUSED, _THERE_AND_BACK = range(4)
#: `Product` of ``kernels/host/fused.hpp``.
_NONE, _FLOATS, _ODD_FLOATS, _DOUBLES = range(4)


class Fused(ctypes.Structure):
    """`Fused` of ``kernels/host/work.hpp``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("to_floats", "to_doubles", "cast", "cast_at_random")),
        *((name, ctypes.c_uint64) for name in ("src_bytes", "dst_bytes")),
        ("scale", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("product", ctypes.c_uint32),
        ("is_exact", ctypes.c_uint32),
    )


class Work(ctypes.Structure):
    """`Work` of ``kernels/host/work.hpp``."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("kind", "function", "seed", "first", "skip", "wants_largest", "wants_finite")
        ),
        ("fused", Fused),
        ("back", Fused),
    )


def find(name: str) -> int:
    """The address of a function of the module. LookupError where it has none of that name."""
    found: int = MODULE.find(name)
    if not found:
        raise LookupError(f"gpucast._host has no {name}; build it again: python -m gpucast.host.build")
    return found


@lru_cache(maxsize=4096)
def function_of(rule: CastRule) -> int:
    """The address of the loop that casts by a rule, random rounding included."""
    if rule.src is not rule.dst:
        return find(rule.function)
    kind = rule.src
    return find(f"gpucast_copy_{'bool' if kind.family == 'bool' else kind.bits}")


@lru_cache(maxsize=4096)
def plain(rule: CastRule) -> bytes:
    """The work of a cast that fuses nothing."""
    if _is_product(rule):
        return work(rule, Fuse(scale=1.0))
    return bytes(Work(_PLAIN, function_of(rule)))


@lru_cache(maxsize=4096)
def fused(rule: CastRule, scaled: bool) -> bytes:
    """The two works that a plan of fused casts chooses from, by any scale and by one that FLOAT has
    (`gpucast.core.rule.resolve`)."""
    if not scaled:
        return 2 * work(rule, Fuse(amax=True))
    return _template(rule, "wide", True, False) + _template(rule, "narrow", True, False)


def _is_product(rule: CastRule) -> bool:
    """Whether a cast rounds by a rule for which its source has no loop: then its DOUBLEs are rounded, times 1."""
    return rule.rounds_by_rule and rule.src not in BY_RULE_SOURCES


def work(rule: CastRule, fused: Fuse) -> bytes:
    """The work of a cast; with a scale the rule is that of products, but for its source
    (`gpucast.core.rule.resolve`)."""
    if fused is EMPTY:
        return plain(rule)
    if fused.scale is None and _is_product(rule):
        fused = fused._replace(scale=1.0)
    looks = fused.amax is not None, fused.finite is not None
    made = Work.from_buffer_copy(_template(rule, fused.scaling, *looks))
    if fused.scale is not None:
        made.fused.scale = fused.scale
    if fused.random is not None:
        made.seed = made.fused.seed = fused.random.seed
        # The offset of one of several arrays may have more than 64 bits.
        made.first, made.skip = divmod(fused.random.offset, 4)
    return bytes(made)


@lru_cache(maxsize=4096)
def _template(rule: CastRule, scaling: Scaling, amax: bool, finite: bool) -> bytes:
    """The work of a fused cast, without its numbers."""
    if scaling == "none" and not amax and not finite:
        return bytes(Work(_AT_RANDOM, function_of(rule)))
    return bytes(Work(_FUSED, find("cast_fused"), 0, 0, 0, amax, finite, _fused(rule, scaling)))


def _fused(rule: CastRule, scaling: Scaling) -> Fused:
    """The cast by a rule, without its numbers."""
    src, is_random, by_rule = rule.src, rule.rounding == STOCHASTIC, rule.rounds_by_rule
    product, last = _NONE, rule
    if scaling != "none":
        # Short floats take products that are rounded to odd; there infinity and numbers beyond FLOAT's are the same.
        is_odd = has_stochastic(rule.dst) and not (is_random or by_rule or rule.infinity_is_nan)
        product, last = (_ODD_FLOATS, replace(rule, src=_FLOAT)) if is_odd else (_DOUBLES, replace(rule, src=_DOUBLE))
    is_exact = src is _FLOAT or src.bits <= 16
    floats, doubles = _unless_same(resolve(src, _FLOAT)), 0 if is_exact else _unless_same(resolve(src, _DOUBLE))
    cast = _unless_same(last) if scaling != "none" else function_of(last)
    if is_exact and scaling == "narrow" and rule.dst is _FLOAT and rule.overflow == "infinity" and not by_rule:
        # The product of two FLOATs is rounded once.
        product, cast = _FLOATS, 0
    return Fused(
        floats, doubles, 0 if is_random else cast, cast if is_random else 0,
        src.code_numpy.itemsize, rule.dst.code_numpy.itemsize, 0.0, 0, product, is_exact,
    )  # fmt: skip


def there_and_back(there: CastRule, back: CastRule, fused: Fuse, inverse: float | None) -> bytes:
    """The work of a cast, and of the cast of its results back times `inverse`, in one pass. The rules and `fused` are
    as for `work`; both rules are scaled or none."""
    scale = fused.scale
    if scale is None and _is_product(there):
        # The way back has a loop of its own in any case: it rounds to nearest.
        scale = 1.0
    kept = _there_and_back(there, back, scaling_of(scale), scaling_of(inverse), fused.amax is not None)
    made = Work.from_buffer_copy(kept)
    if scale is not None:
        made.fused.scale = scale
    if inverse is not None:
        made.back.scale = inverse
    if fused.random is not None:
        made.fused.seed = fused.random.seed
        made.first, made.skip = divmod(fused.random.offset, 4)
    return bytes(made)


@lru_cache(maxsize=1024)
def _there_and_back(there: CastRule, back: CastRule, scaling: Scaling, inverse: Scaling, amax: bool) -> bytes:
    function = find("cast_there_and_back")
    return bytes(Work(_THERE_AND_BACK, function, 0, 0, 0, amax, False, _fused(there, scaling), _fused(back, inverse)))


def _unless_same(rule: CastRule) -> int:
    return 0 if rule.src is rule.dst else function_of(rule)


def has(rule: CastRule) -> bool:
    """Whether the module has a loop for a rule. It has none for dtypes that came after it was built."""
    try:
        plain(rule)
    except LookupError:
        return False
    return True
