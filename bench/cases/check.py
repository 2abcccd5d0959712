# SPDX-License-Identifier: Apache-2.0
"""Checks before timing: results are compared with the reference, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from bench.cases.buffers import CONTIGUOUS, Sets, as_array, sets_of
from bench.cases.contenders import Contender, array_codes
from bench.timing.machine import Array, Machine
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

    checked: int
    wrong: int
    first: str = ""

    def __add__(self, other: Check) -> Check:
        return Check(self.checked + other.checked, self.wrong + other.wrong, self.first or other.first)


def check_sample(machine: Machine, contender: Contender, src: DType, dst: DType, exact: bool) -> Check:
    """Check every code of a source of 16 bits or fewer, or hard values and random ones of a wider source.

    `exact`: NaNs are compared by their bits; otherwise all NaNs count as equal.
    """
    codes, wanted = _sample(resolve(src, dst))
    sets = sets_of(machine, src, dst, codes.size, CONTIGUOUS, codes, 1)
    result = contender.prepare(sets)(0)
    contender.wait(result)
    return compare(contender.codes(result, dst, codes.size), codes, wanted, src, dst, exact)


def check_head(contender: Contender, sets: Sets, result: Any) -> Check:
    """Check the first results of a rival that takes too long to prepare for a separate sample."""
    elements = np.arange(min(sets.n, 16 * WINDOW))
    codes = sets.taken(elements)
    contender.wait(result)
    got = contender.codes(result, sets.dst, elements.size)
    return compare(got, codes, wanted_codes(resolve(sets.src, sets.dst), codes), sets.src, sets.dst, False)


def check_windows(contender: Contender, sets: Sets) -> Check:
    """Check the beginning, the middle and the end of the destination that a contender writes to."""
    out, dst, n = sets.outs[0], sets.dst, sets.n
    sets.machine.fill(out, 0xA5)
    contender.wait(contender.prepare(sets)(0))
    total = Check(0, 0)
    # Multiples of 8, so that windows of types below one byte begin at a byte.
    for begin in sorted({0, n // 2 // 8 * 8, max(0, n - WINDOW) // 8 * 8}):
        count = min(WINDOW, n - begin)
        data = out[begin * dst.bits // 8 : dst.nbytes(begin + count)]
        got = array_codes(sets.machine, as_array(data, dst, count), dst, count)
        codes = sets.taken(np.arange(begin, begin + count))
        total += compare(got, codes, wanted_codes(resolve(sets.src, dst), codes), sets.src, dst, True)
    return total


def compare(got: Array, codes: Array, wanted: Array, src: DType, dst: DType, exact: bool) -> Check:
    differs = got != wanted
    if dst.has_nan and not exact:
        differs &= ~(_is_nan(got, dst) & _is_nan(wanted, dst))
    wrong = int(np.count_nonzero(differs))
    if not wrong:
        return Check(got.size, 0)
    i = int(differs.argmax())
    first = (
        f"{describe(src, int(codes[i]))} gives {describe(dst, int(got[i]))}, "
        f"the reference {describe(dst, int(wanted[i]))}"
    )
    return Check(got.size, wrong, first)


def _is_nan(codes: Array, dtype: DType) -> Array:
    # NumPy warns of signaling NaNs.
    with np.errstate(invalid="ignore"):
        return np.isnan(codes.view(dtype.numpy).astype(np.float64))


@lru_cache(maxsize=2)
def _sample(rule: CastRule) -> tuple[Array, Array]:
    codes = codes_of(rule, 0, _SHARE, _RANDOM)
    return codes, wanted_codes(rule, codes)
