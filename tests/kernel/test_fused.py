# SPDX-License-Identifier: Apache-2.0
"""Casts with a number to multiply with, the largest magnitude kept beside, and rounding at random: host and kernels.

Here are the numbers; `tests/parity/test_matrix.py` has the layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from codes import assert_same
from fused_cases import CASES, RANDOM, in_use, largest, oracle, rule_of
from gpucast.arrays.array import Array
from gpucast.casting import engines
from gpucast.casting.engine import Call
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import fuse_of
from gpucast.core.rounding import STOCHASTIC
from gpucast.core.rule import CastRule, Options, has_stochastic, resolve
from gpucast.kernel.fused_kernel import FusedOps
from gpucast.parity.cases import NUMERIC
from gpucast.reference import exact_cast
from hard_codes import every_or_hard, hard_codes
from host_driver import elements, upload

FLOAT, DOUBLE = dtype("FLOAT"), dtype("DOUBLE")
#: Of FLOAT: the smallest, one with all bits, the largest, and usual ones.
NARROW = tuple(float(np.float32(number)) for number in (0.1, 1.5, 0.0, 2**-149, 3.4028235e38, -3.3))
#: 1 - 2^-53 makes products that are rounded twice; the smallest and the largest ones leave the range.
WIDE = (0.1, 1 - 2**-53, 5e-324, -1.7e308)


def check(codes: np.ndarray, rule: CastRule, scale: float | None, ops: FusedOps, place: Callable[[Any], Any]) -> None:
    """The result, the largest magnitude and the finiteness of a cast; then of the finite numbers alone."""
    finite = np.isfinite(exact_cast.cast(codes.view(rule.src.numpy), "DOUBLE"))
    for some in (codes, codes[finite]):
        x, attributes = some.view(rule.src.numpy), {}
        if rule.rounding == STOCHASTIC:
            attributes = {"rounding": STOCHASTIC, **RANDOM._asdict()}
        amax = place(np.zeros((), np.float32)) if ops.amax else None
        flag = place(np.ones((1, 1), bool)) if ops.finite else None
        call = Call("test", Array.of(place(x)), rule, fuse_of(scale, amax, flag, RANDOM if attributes else None))
        engines.of(call.source.device).run((call,))
        assert_same(elements(call.written.array), oracle(x, rule.dst, scale, **attributes))
        if ops.amax:
            assert_same(elements(amax), largest(x, rule.src))
        if ops.finite:
            assert elements(flag).all() == (finite.all() or some is not codes)


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_every_pair_on_the_host(src: DType) -> None:
    for i, dst in enumerate(NUMERIC):
        for j, scale in enumerate((None, WIDE[i % 4], NARROW[i % 6])):
            rounding = STOCHASTIC if has_stochastic(dst) and (i + j) % 2 else None
            rule = resolve(src, dst, Options(rounding=rounding, scale=scale))
            check(hard_codes(src, dst, 60), rule, scale, FusedOps(amax=True, finite=True), lambda x: x)


def near_ties(dst: DType, scale: float, most: int) -> np.ndarray:
    """FLOATs whose product with a number lies at the values of a type, between them, or beside."""
    points = hard_codes(DOUBLE, dst, most).view(np.float64)
    with np.errstate(all="ignore"):
        codes = (points / scale).astype(np.float32).view(np.uint32)
    return np.concatenate([codes - np.uint32(1), codes, codes + np.uint32(1)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_the_kernels(case: tuple[DType, DType, FusedOps, bool], exhaustive: bool) -> None:
    """The products are those of DOUBLEs, whatever a kernel multiplies with."""
    src, dst, ops, _ = case
    scales: list[float | None] = [*{"none": (None,), "narrow": NARROW, "wide": WIDE}[ops.scaling]]
    if ops.scaling == "narrow":
        numbers = np.random.default_rng(0).integers(0, FLOAT.inf_code, 200 if exhaustive else 4, np.uint32)
        scales += numbers.view(np.float32).tolist()
    with in_use() as driver:
        for scale in scales:
            codes = every_or_hard(src, dst, 3000)
            if src is FLOAT and dst.is_float and scale:
                codes = np.concatenate([codes, near_ties(dst, scale, 6000)])
            check(codes, rule_of(*case), scale, ops, upload)
        assert len(driver.launched) == 2 * len(scales), "one launch each"
