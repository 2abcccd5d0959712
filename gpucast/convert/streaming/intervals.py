# SPDX-License-Identifier: Apache-2.0
"""Holds casts to narrow floats against the reference without casting each number again: the sources that the reference
casts to one code lie side by side. Where they begin it says itself, by bisection."""

from __future__ import annotations

import numpy as np

from gpucast.core.dtypes import DType
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule
from gpucast.files.tensor import NDArray
from gpucast.reference import exact_cast

#: Beyond all keys, for results that are NaN though the source is none.
_BEYOND = np.int64(1 << 62)


class Intervals:
    """The sources of each code of `rule.dst`."""

    def __init__(self, rule: CastRule) -> None:
        self._rule = rule
        codes = np.arange(1 << rule.dst.bits).astype(rule.dst.code_numpy)
        numbers = ~_is_nan(codes, rule.dst)
        keys = np.unique(_keys(codes[numbers], rule.dst))
        #: The place of each code among the keys; -1 for NaN.
        self._place = np.full(codes.size, -1, np.int32)
        self._place[numbers] = np.searchsorted(keys, _keys(codes[numbers], rule.dst))
        top = _top(rule.src)
        wanted = np.append(keys, _BEYOND)
        low, high = np.full(wanted.size, -1 - top, np.int64), np.full(wanted.size, top + 1, np.int64)
        while (low < high).any():
            # Their sum may be beyond 64 bits.
            middle = (low & high) + ((low ^ high) >> 1)
            reached = self._reached(np.minimum(middle, top)) >= wanted
            high, low = np.where(reached, middle, high), np.where(reached, low, middle + 1)
            low = np.minimum(low, high)
        self._first = low

    @staticmethod
    def cost(rule: CastRule) -> int | None:
        """The casts that it takes to find them; None where they do not lie side by side."""
        known = rule.src.family == rule.dst.family == "float" and rule.dst.bits <= 16
        plain = all("fnuz" not in one.specials and one.sign_code for one in (rule.src, rule.dst))
        return rule.src.bits << rule.dst.bits if known and plain and rule.rounding != STOCHASTIC else None

    def suspects(self, x: NDArray, y: NDArray) -> NDArray:
        """The places of flat elements whose results may be others than those of the reference."""
        codes = x.view(self._rule.src.code_numpy)
        place = self._place[y.view(self._rule.dst.code_numpy)]
        key = _keys(codes, self._rule.src)
        within = (self._first[place] <= key) & (key < self._first[place + 1])
        return np.flatnonzero(~within | (place < 0) | _is_nan(codes, self._rule.src))

    def _reached(self, keys: NDArray) -> NDArray:
        """The keys of the results of sources."""
        src, dst = self._rule.src, self._rule.dst
        sizes = np.where(keys < 0, -1 - keys, keys).astype(np.uint64)
        codes = (sizes | np.where(keys < 0, np.uint64(src.sign_code), np.uint64(0))).astype(src.code_numpy)
        made = np.asarray(exact_cast.apply(codes.view(src.numpy), self._rule)).view(dst.code_numpy)
        return np.where(_is_nan(made, dst), np.where(keys < 0, -_BEYOND, _BEYOND), _keys(made, dst))


def _magnitudes(codes: NDArray, kind: DType) -> NDArray:
    return np.asarray(codes.astype(np.int64) & np.int64(kind.sign_code - 1))


def _keys(codes: NDArray, kind: DType) -> NDArray:
    """Codes as integers in the order of their numbers; that of -0 is just below that of 0."""
    size = _magnitudes(codes, kind)
    return np.where(codes >> (kind.bits - 1) != 0, -1 - size, size)


def _top(kind: DType) -> int:
    """The largest magnitude that is no NaN, as a code."""
    return int(kind.max_code) + (1 if kind.has_inf else 0)


def _is_nan(codes: NDArray, kind: DType) -> NDArray:
    return np.asarray(_magnitudes(codes, kind) > _top(kind))
