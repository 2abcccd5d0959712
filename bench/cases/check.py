# SPDX-License-Identifier: Apache-2.0
"""Checks before timing: results are compared with the reference, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases.buffers import CONTIGUOUS, Sets, sets_of
from bench.timing.machine import Machine, NDArray
from gpucast.core.dtypes import DType
from gpucast.core.rule import CastRule, resolve
from gpucast.parity.compare import codes_of, describe, wanted_codes

#: For a wide source: the share of the destination's midpoints, and the number of random codes.
_SHARE, _RANDOM = 1 / 16, 4096
#: The elements compared at the beginning, in the middle and at the end of a large result.
WINDOW = 4096


@dataclass(frozen=True)
class Check:
    """How many results were compared, how many differ, and a description of the first that differs."""

    checked: int = 0
    wrong: int = 0
    first: str = ""

    def __add__(self, other: Check) -> Check:
        return Check(self.checked + other.checked, self.wrong + other.wrong, self.first or other.first)


def hard_sets(machine: Machine, src: DType, dst: DType) -> Sets:
    """One set with every code of a source of 16 bits or fewer, or hard values and random ones of a wider source."""
    codes = _hard_codes(resolve(src, dst))
    return sets_of(machine, src, dst, codes.size, CONTIGUOUS, codes, 1)


def check_windows(contender: Any, sets: Sets, result: Any, exact: bool) -> Check:
    """Check the beginning, the middle and the end of a contender's result, or all of a short one.

    `exact`: NaNs are compared by their bits; otherwise all NaNs count as equal.
    """
    contender.wait(result)
    src, dst, n = sets.src, sets.dst, sets.n
    # Multiples of 8, so that windows of types below one byte begin at a byte.
    starts = sorted({0, n // 2 // 8 * 8, max(0, n - WINDOW) // 8 * 8})
    total = Check()
    for start, stop in [(0, n)] if sets.codes.size == n else [(start, min(n, start + WINDOW)) for start in starts]:
        codes = sets.taken(np.arange(start, stop))
        got = contender.codes(result, dst, start, stop)
        total += compare(got, codes, wanted_codes(resolve(src, dst), codes), src, dst, exact)
    return total


def compare(got: NDArray, codes: NDArray, wanted: NDArray, src: DType, dst: DType, exact: bool) -> Check:
    """How the codes of a result differ from those that are wanted, which `codes` were cast to."""
    differs = got != wanted
    if dst.has_nan and not exact:
        differs &= ~(_is_nan(got, dst) & _is_nan(wanted, dst))
    wrong = int(np.count_nonzero(differs))
    if not wrong:
        return Check(got.size)
    i = int(differs.argmax())
    first = (
        f"{describe(src, int(codes[i]))} gives {describe(dst, int(got[i]))}, "
        f"the reference {describe(dst, int(wanted[i]))}"
    )
    return Check(got.size, wrong, first)


def _is_nan(codes: NDArray, dtype: DType) -> NDArray:
    # NumPy warns of signaling NaNs.
    with np.errstate(invalid="ignore"):
        return np.isnan(codes.view(dtype.numpy).astype(np.float64))


@lru_cache(maxsize=2)
def _hard_codes(rule: CastRule) -> NDArray:
    return codes_of(rule, 0, _SHARE, _RANDOM)
