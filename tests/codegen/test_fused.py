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
from codes import assert_codes, assert_same, every_code
from fused_cases import CASES, RANDOM, in_use, on_host, rule_of, to_device
from gpucast import PackedArray
from gpucast.arrays.operand import operand
from gpucast.casting.cast import apply
from gpucast.casting.fused_options import fused_rule
from gpucast.codegen.fused_kernel import FusedArguments, FusedOps, fused_source
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.rule import STOCHASTIC, CastRule, Options, has_stochastic
from gpucast.parity import hard_values, host_build
from gpucast.parity.cases import NUMERIC
from gpucast.reference import exact_cast
from hard_codes import hard_codes
from host_driver import HostDriver, upload

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


#: Those whose kernels multiply without DOUBLE.
SHORT_PRODUCTS = [
    case for case in CASES if case[2].scaling == "narrow" and not case[3] and case[0].bits >= 8 and case[1].is_float
]


def near_ties(dst: DType, scale: float, most: int) -> np.ndarray:
    """FLOATs whose product with a number lies at the values of a type, between them, or beside."""
    if not (dst.is_float and scale):
        return np.empty(0, np.float32)
    points = hard_values.codes(DOUBLE, dst, seed=2, share=1 / 8, random=0).view(np.float64)
    with np.errstate(all="ignore"):
        codes = (points / scale).astype(np.float32).view(np.uint32)
    near = np.unique(np.concatenate([codes - np.uint32(1), codes, codes + np.uint32(1)]))
    return np.random.default_rng(2).permutation(near)[:most].view(np.float32)


def values(src: DType, dst: DType, scale: float | None, most: int) -> np.ndarray:
    codes = hard_codes(src, dst, most)
    if src is not FLOAT or scale is None:
        return codes.view(src.numpy)
    return np.concatenate([near_ties(dst, scale, 4 * most), codes.view(src.numpy)])


def check(source: Any, rule: CastRule, inputs: FusedInputs) -> None:
    """The kernel gives the result, the largest magnitude and the finiteness that the host gives."""

    def copies(make: Any) -> FusedInputs:
        return inputs._replace(**{name: make(array) for name, array in inputs._asdict().items() if name in flags})

    flags = [name for name in ("amax", "finite") if getattr(inputs, name) is not None]
    ours, theirs = copies(np.copy), copies(to_device)
    wanted = cast(on_host(source), rule, ours)
    got = cast(source, rule, theirs)
    assert isinstance(got, PackedArray) == rule.dst.packed
    assert_same(on_host(got), wanted)
    for name in flags:
        assert_same(on_host(getattr(theirs, name)), getattr(ours, name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_the_kernel_is_the_host(case: tuple[DType, DType, FusedOps, bool], driver: HostDriver) -> None:
    src, dst, asked, random = case
    rule = rule_of(*case)
    scales: tuple[float | None, ...] = {"none": (None,), "narrow": NARROW, "wide": WIDE}[asked.scaling]
    for scale in scales:
        x = values(src, dst, scale, 1501)
        finite = finite_codes(hard_codes(src, dst, 300), src).view(src.numpy)
        for y in (x, finite):
            sources = [
                upload(y),
                upload(y[:0]),
                upload(y[: 2 * y.size // 3], offset=y.itemsize),
                upload(np.resize(y, (6, 7, 5)))[::2, :, ::-1],
                upload(np.resize(y, (7, 9))).T,
            ]
            if src.packed:
                # Behind the last element there are bits that are none of an element.
                odd = y[: y.size // 4 * 4 - 1]
                for offset in (0, 1):
                    data = PackedArray.pack(odd).data
                    data[-1] |= 0xFF << (odd.size * src.bits % 8) & 0xFF
                    sources.append(PackedArray(upload(data, offset=offset), src, odd.shape))
            for source in sources:
                inputs = FusedInputs(
                    scale,
                    np.zeros((), np.float32) if asked.amax else None,
                    np.ones((1, 1), bool) if asked.finite else None,
                    RANDOM if random else None,
                )
                driver.launched.clear()
                check(source, rule, inputs)
                assert len(driver.launched) == (source.size > 0), "one launch"


@pytest.mark.parametrize("case", SHORT_PRODUCTS, ids=lambda case: " ".join(map(str, case)))
def test_the_short_product_is_the_long_one(
    case: tuple[DType, DType, FusedOps, bool], driver: HostDriver, exhaustive: bool
) -> None:
    """Kernels that multiply FLOATs, against the host's products of DOUBLEs: every code of 16 bits, FLOATs near ties; or
    all FLOATs."""
    src, dst, asked, _ = case
    rng = np.random.default_rng(0)
    scales = rng.integers(0, FLOAT.inf_code, 200 if exhaustive else 4, np.uint32).view(np.float32)
    amax, finite = np.zeros(1, np.float32) if asked.amax else None, np.ones(1, bool) if asked.finite else None
    for scale in map(float, scales):
        x = near_ties(dst, scale, 1 << 16) if src is FLOAT else every_code(src).view(src.numpy)
        check(upload(x), rule_of(*case), FusedInputs(scale, amax, finite))
    if src is FLOAT and exhaustive:
        every_float(dst, 0.1)


def every_float(dst: DType, scale: float) -> None:
    """For all codes: against the kernel that multiplies DOUBLEs."""
    rule, count = fused_rule(FLOAT, dst, scaled=True), 1 << 20
    short, long = (fused_source(rule, FusedOps(scaling)) for scaling in ("narrow", "wide"))
    kernels, arguments = host_build.build([short, long]), FusedArguments(float(np.float32(scale))).to_bytes()
    got, wanted = (np.empty(count, dst.code_numpy) for _ in range(2))
    for first in range(0, 1 << 32, count):
        codes = np.arange(first, first + count, dtype=np.uint32)
        for source, out in ((short, got), (long, wanted)):
            kernels.launch(source.name, host_build.Arguments(codes.ctypes.data, out.ctypes.data, count, more=arguments))
        assert_codes(got, wanted, f"{rule} times {scale}", codes)
