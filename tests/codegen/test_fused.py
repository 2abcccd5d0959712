# SPDX-License-Identifier: Apache-2.0
"""Casts with a number to multiply with, the largest magnitude kept beside, and rounding at random: host and kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import exact
from codes import assert_codes, assert_same
from fused_cases import CASES, RANDOM, in_use, on_host, rule_of, to_device
from gpucast import PackedArray
from gpucast.arrays.operand import operand
from gpucast.casting.cast import apply
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.fused_kernel import FusedOps
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import STOCHASTIC, CastRule, Options, has_stochastic
from gpucast.parity.cases import NUMERIC
from gpucast.reference import exact_cast
from hard_codes import every_or_hard, hard_codes
from host_driver import HostDriver

FLOAT, DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
TO_FLOAT, TO_DOUBLE = (CastRule(row, row, overflow="infinity") for row in (FLOAT, DOUBLE))
#: Of FLOAT: the smallest, one with all bits, the largest, and usual ones.
NARROW = tuple(float(np.float32(number)) for number in (0.1, 1.5, 0.0, 2**-149, 3.4028235e38, -3.3))
#: 1 - 2^-53 makes products that are rounded twice; the smallest and the largest ones leave the range.
WIDE = (0.1, 1 - 2**-53, 5e-324, -1.7e308)


# ---- the exact model ----


def scaled_exactly(code: int, rule: CastRule, scale: float | None, word: int | None) -> int:
    """A product by rational arithmetic, from the words of gpucast.casting.fused_options."""
    if scale is None:
        if rule.src is rule.dst:
            return exact.cast_codes([code], rule)[0]
        x = exact.decode(rule.src, code)
    else:
        x = exact.decode(DOUBLE, exact.to_float(exact.decode(rule.src, code), TO_DOUBLE))
        negative = x.negative != (math.copysign(1, scale) < 0)
        if x.kind == "infinite":
            x = exact.ExactNumber("nan", False) if scale == 0 else exact.ExactNumber("infinite", negative)
        elif x.kind == "finite":
            product = exact.ExactNumber("finite", negative, x.magnitude * abs(Fraction(scale)))
            x = exact.decode(DOUBLE, exact.to_float(product, TO_DOUBLE))
    if word is not None:
        return exact.to_float(x, rule, word)
    return exact.cast(x, TO_DOUBLE if rule.dst is DOUBLE and scale is not None else rule)


def largest_exactly(codes: np.ndarray, src: DType) -> int:
    """The code of the FLOAT that `amax` becomes."""
    numbers = [exact.decode(src, int(code)) for code in codes]
    if any(x.kind == "nan" for x in numbers):
        return FLOAT.nan_code
    if any(x.kind == "infinite" for x in numbers):
        return FLOAT.inf_code
    return exact.to_float(exact.ExactNumber("finite", False, max(x.magnitude for x in numbers)), TO_FLOAT)


def finite_codes(codes: np.ndarray, src: DType) -> np.ndarray:
    return codes[[exact.decode(src, int(code)).kind == "finite" for code in codes]]


def cast(x: Any, rule: CastRule, inputs: FusedInputs) -> Any:
    return apply(operand(x), rule, fused=inputs).array


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_the_host_is_the_exact_model(src: DType) -> None:
    for i, dst in enumerate(NUMERIC):
        codes = hard_codes(src, dst, 24)
        for j, scale in enumerate((None, WIDE[i % 4], NARROW[i % 6])):
            random = RANDOM if has_stochastic(dst) and (i + j) % 2 else None
            rule = fused_rule(src, dst, Options(rounding=random and STOCHASTIC), scaled=scale is not None)
            random = random if rule.rounding == STOCHASTIC else None
            for case in (codes, finite_codes(codes, src)):
                amax, finite = np.zeros((), np.float32), np.ones(1, bool)
                inputs = FusedInputs(scale, amax, finite, random)
                got = cast(case.view(src.numpy), rule, inputs).view(dst.code_numpy)
                words = [None] * case.size if random is None else exact_cast.random_words(random, case.size)
                wanted = [
                    scaled_exactly(int(code), rule, scale, None if word is None else int(word))
                    for code, word in zip(case, words, strict=True)
                ]
                assert_codes(got, np.array(wanted, dst.code_numpy), f"{rule} times {scale}", case)
                assert amax.view(np.uint32) == largest_exactly(case, src)
                assert finite == (finite_codes(case, src).size == case.size)


# ---- the kernels ----


@pytest.fixture
def driver() -> Iterator[HostDriver]:
    with in_use() as ready:
        yield ready


def near_ties(dst: DType, scale: float, most: int) -> np.ndarray:
    """FLOATs whose product with a number lies at the values of a type, between them, or beside."""
    points = hard_codes(DOUBLE, dst, most).view(np.float64)
    with np.errstate(all="ignore"):
        codes = (points / scale).astype(np.float32).view(np.uint32)
    return np.concatenate([codes - np.uint32(1), codes, codes + np.uint32(1)])


def check(codes: np.ndarray, rule: CastRule, inputs: FusedInputs) -> None:
    """The kernel gives the result, the largest magnitude and the finiteness that the host gives."""

    def copies(make: Any) -> FusedInputs:
        return inputs._replace(**{name: make(array) for name, array in inputs._asdict().items() if name in flags})

    flags = [name for name in ("amax", "finite") if getattr(inputs, name) is not None]
    ours, theirs = copies(np.copy), copies(to_device)
    x = codes.view(rule.src.numpy)
    wanted, got = cast(x, rule, ours), cast(to_device(x), rule, theirs)
    assert isinstance(got, PackedArray) == rule.dst.packed
    assert_same(on_host(got), wanted)
    for name in flags:
        assert_same(on_host(getattr(theirs, name)), getattr(ours, name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_the_kernel_is_the_host(
    case: tuple[DType, DType, FusedOps, bool], driver: HostDriver, exhaustive: bool
) -> None:
    """By the host's products of DOUBLEs, whatever the kernel multiplies with. (Layouts are in test_matrix.py.)"""
    src, dst, asked, random = case
    scales: list[float | None] = [*{"none": (None,), "narrow": NARROW, "wide": WIDE}[asked.scaling]]
    if asked.scaling == "narrow":
        codes = np.random.default_rng(0).integers(0, FLOAT.inf_code, 200 if exhaustive else 4, np.uint32)
        scales += codes.view(np.float32).tolist()
    for scale in scales:
        every = every_or_hard(src, dst, 3000)
        if src is FLOAT and dst.is_float and scale:
            every = np.concatenate([every, near_ties(dst, scale, 6000)])
        for some in (every, finite_codes(hard_codes(src, dst, 300), src)):
            amax = np.zeros((), np.float32) if asked.amax else None
            finite = np.ones((1, 1), bool) if asked.finite else None
            check(some, rule_of(*case), FusedInputs(scale, amax, finite, RANDOM if random else None))
