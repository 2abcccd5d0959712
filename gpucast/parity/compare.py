# SPDX-License-Identifier: Apache-2.0
"""Compares a backend's codes with the reference's, bit for bit, for one case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpucast.core.dtypes import DType
from gpucast.core.random import Random
from gpucast.core.rule import CastRule
from gpucast.parity import hard_values
from gpucast.parity.backends import Array, CastCodes
from gpucast.parity.cases import Case
from gpucast.reference import exact_cast

#: Elements of a block, so few that the reference's scratch arrays stay in the cache.
BLOCK = 1 << 16
#: The fewest elements of an array: several whole tiles and a tail.
_LEAST = 4099


@dataclass(frozen=True)
class Mismatch:
    """The first element that differs: codes throughout."""

    case: Case
    index: int
    bits: int
    wanted: int
    got: int

    def __str__(self) -> str:
        src, dst = self.case.rule.src, self.case.rule.dst
        return (
            f"{self.case}: index {self.index}, input {describe(src, self.bits)}: "
            f"wanted {describe(dst, self.wanted)}, got {describe(dst, self.got)}"
        )


@dataclass(frozen=True)
class CaseResult:
    """The result of one case."""

    case: Case
    #: Elements cast, and how many of them differ from the reference.
    elements: int
    wrong: int = 0
    first: Mismatch | None = None


def describe(dtype: DType, code: int) -> str:
    """A code in hexadecimal, with its value."""
    bits = f"{code:#0{2 + -(-dtype.bits // 4)}x}"
    return f"{bits} ({dtype.value(code)!r})" if code <= dtype.code_mask else f"{bits} (no code of {dtype.name})"


def codes_of(rule: CastRule, seed: int, share: float, random: int) -> Array:
    """The codes to try: all of a source of 16 bits or fewer, or hard values and random ones of a wider source.

    `share`: the share of the destination's midpoints to try if it has thousands.
    """
    src = rule.src
    if src.bits > 16:
        # Every random code comes with one whose magnitude is ordinary.
        return hard_values.codes(src, rule.dst, seed, share, -(-random // 2))
    count = 2 if src.family == "bool" else 1 << src.bits
    return np.resize(np.arange(count, dtype=src.code_numpy), max(count, _LEAST))


def wanted_codes(rule: CastRule, codes: Array, random: Random | None = None, start: int = 0) -> Array:
    """The reference's result for codes; with stochastic rounding, for the elements from `start` on of an array."""
    words = None
    if random is not None:
        words = exact_cast.random_words(random._replace(offset=random.offset + start), codes.size)
    return np.asarray(exact_cast.apply(codes.view(rule.src.numpy), rule, words).view(rule.dst.code_numpy))


def compare(cast: CastCodes, case: Case, codes: Array) -> CaseResult:
    """Cast the codes, as one array, and compare them block by block."""
    got = cast(case, codes)
    wrong, first, random = 0, None, case.random
    for start in range(0, codes.size, BLOCK):
        block = slice(start, start + BLOCK)
        differs = got[block] != wanted_codes(case.rule, codes[block], random, start)
        wrong += int(np.count_nonzero(differs))
        if wrong and first is None:
            first = mismatch(case, codes, got, start + int(differs.argmax()))
    return CaseResult(case, codes.size, wrong, first)


def mismatch(case: Case, codes: Array, got: Array, index: int, base: int = 0) -> Mismatch:
    """The mismatch at `index` of two arrays, whose first element has the index `base` among all that is tried."""
    wanted = wanted_codes(case.rule, codes[index : index + 1], case.random, index)
    return Mismatch(case, base + index, int(codes[index]), int(wanted[0]), int(got[index]))
