# SPDX-License-Identifier: Apache-2.0
"""Casts with random rounding by the host's compiled library."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpucast.codegen.cast import kernel_name
from gpucast.codegen.host import HostUnit, stochastic_unit
from gpucast.core.dtypes import DType
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, CastRule, has_stochastic
from gpucast.cpu import stochastic as host_stochastic
from gpucast.native import cast as native_cast
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.native.calls import pointer
from gpucast.native.cast import Array

#: The words with which a cast is tried: they begin within a block, and the blocks' numbers pass 32 bits.
TRIED = Random(0x123456789ABCDEF0, (1 << 34) - 4095)


class StochasticCast:
    """Casts by one rule. Safe to call from several threads."""

    def __init__(self, library: ctypes.CDLL, rule: CastRule) -> None:
        self.function = library[kernel_name(rule)]
        self.function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint64] * 4)
        self.function.restype = None

    def __call__(self, x: Array, out: Array, random: Random) -> None:
        """Cast flat, native codes into all of `out`, which does not overlap them."""
        assert x.size == out.size
        src, dst = pointer(x).value or 0, pointer(out).value or 0

        def work(start: int, stop: int) -> None:
            first, skip = divmod(random.offset + start, 4)
            at = src + start * x.itemsize, dst + start * out.itemsize
            self.function(*at, stop - start, random.seed, first, skip)

        threads.split(work, x.size, x.nbytes + out.nbytes)


def find(rule: CastRule, nbytes: int = 0) -> StochasticCast | None:
    """The cast of a rule, or None where it is not compiled; `nbytes`: bytes of sources about to be cast."""
    library = host_native.library(_unit, rule.src, nbytes=nbytes)
    return None if library is None else _checked(library, rule)


def _unit(src: DType) -> HostUnit:
    return stochastic_unit(_rules(src))


def _rules(src: DType) -> list[CastRule]:
    return [replace(rule, rounding=STOCHASTIC) for rule in native_cast._rules(src) if has_stochastic(rule.dst)]


@lru_cache(maxsize=256)
def _checked(library: ctypes.CDLL, rule: CastRule) -> StochasticCast | None:
    """The cast, or None if it was compiled wrongly: it does what NumPy does to every exponent and many mantissas."""
    cast, codes = StochasticCast(library, rule), native_cast.codes_to_try(rule.src)
    out, wanted = np.empty((2, codes.size), rule.dst.code_numpy)
    cast(codes, out, TRIED)
    host_stochastic.by_numpy(codes, rule, wanted, TRIED)
    return cast if np.array_equal(out, wanted) else None
