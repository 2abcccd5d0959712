# SPDX-License-Identifier: Apache-2.0
"""FLOAT8UE5M3, the float without a sign: its codes, its rule (semantics, rule 12), and every FLOAT."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import exact
import gpucast
from codes import NUMERIC
from gpucast.core.dtypes import DType, dtype
from gpucast.core.rule import resolve

UE5M3, FLOAT = dtype("FLOAT8UE5M3"), dtype("FLOAT")


def of_codes(codes: list[int]) -> np.ndarray:
    return np.array(codes, np.uint8).view(UE5M3.numpy)


def to_codes(x: object, **keywords: object) -> list[int]:
    return gpucast.cast(x, UE5M3, **keywords).view(np.uint8).tolist()


def test_its_codes() -> None:
    limits = gpucast.finfo(UE5M3)
    assert (limits.max, limits.min, limits.smallest_subnormal, limits.smallest_normal) == (114688, 0, 2**-17, 2**-14)
    assert (limits.has_inf, limits.has_nan, UE5M3.nan_code, UE5M3.has_negative_zero) == (False, True, 0xFF, False)
    values = gpucast.cast(of_codes(list(range(256))), FLOAT)
    assert values[:255].tolist() == sorted({float(exact.decode(UE5M3, code).magnitude) for code in range(255)})
    assert values.view(np.uint32)[255] == 0x7FC00000
    texts = gpucast.cast(of_codes([0, 1, 0x78, 0xFE, 0xFF]), "STRING").tolist()
    assert texts == ["0.0", "7.6293945e-06", "1.0", "114688.0", "NaN"]
    assert to_codes(np.array(["-1", "-7.6e-6", "INF", "-nan", "1e-9"], object)) == [0x78, 1, 0xFE, 0xFF, 0]


@pytest.mark.parametrize("other", NUMERIC, ids=str)
def test_every_code_to_every_type_and_back(other: DType) -> None:
    rule, back = resolve(UE5M3, other), resolve(other, UE5M3)
    there = gpucast.cast(of_codes(list(range(256))), other)
    codes = there.view(other.code_numpy)
    assert codes.tolist() == exact.cast_codes(range(256), rule)
    assert to_codes(there) == exact.cast_codes(codes, back)
    # A type that holds all its numbers keeps each code.
    if gpucast.core.rule.holds(other, UE5M3) and other.is_float:
        assert to_codes(there) == list(range(256))


def test_the_sign_is_discarded_before_anything_is_rounded() -> None:
    x = np.float32([-0.0, -3.1, -(2.0**-18), -1e9, -np.inf, np.copysign(np.nan, -1)])
    for saturate in (True, False):
        for rounding in (None, "nearest_away", "toward_zero", "upward", "downward", "odd"):
            keywords = {"saturate": saturate, "rounding": rounding}
            assert to_codes(x, **keywords) == to_codes(np.abs(x), **keywords)
            found = gpucast.reference.cast(x, UE5M3, **keywords)  # type: ignore[arg-type]
            assert found.view(np.uint8).tolist() == to_codes(x, **keywords)
            text = gpucast.reference.cast(np.array(["-3.1"], object), UE5M3, rounding=rounding)  # type: ignore[arg-type]
            assert text.view(np.uint8).tolist() == to_codes(np.float64([3.1]), rounding=rounding)
    assert to_codes(x, rounding="downward") == to_codes(x, rounding="toward_zero") != to_codes(x, rounding="upward")
    assert to_codes(np.int64([-(2**63), -1])) == [0xFE, 0x78]


def test_overflow_begins_above_the_tie() -> None:
    x = np.float32([114688, 118784, np.nextafter(np.float32(118784), np.float32(np.inf)), 2.0**17, np.inf])
    assert to_codes(x) == [0xFE] * 5
    assert to_codes(x, saturate=False) == [0xFE, 0xFE, 0xFF, 0xFF, 0xFF]
    assert to_codes(x, saturate=False, overflow="saturate") == [0xFE] * 5


def test_onnx_has_no_number_for_it() -> None:
    assert UE5M3.number is UE5M3.opset is None
    for keywords in ({"opset": 28}, {"opset": 27}, {"opset": 1}):
        with pytest.raises(TypeError, match=r"^cast: to=FLOAT8UE5M3 is in no opset; opset="):
            gpucast.cast(np.float32([1]), UE5M3, **keywords)
    with pytest.raises(TypeError, match=r"^cast_like: to=FLOAT8UE5M3 is in no opset"):
        gpucast.cast_like(np.float32([1]), of_codes([0]), opset=28)
    assert to_codes(np.float32([1])) == [0x78]


def steps(saturate: bool) -> tuple[list[int], list[int]]:
    """The first FLOAT, as a code, of each result for positive numbers, and the results, by the exact model."""
    rule = resolve(FLOAT, UE5M3, gpucast.core.rule.Options(saturate=saturate))
    found, results, infinity = [0], [exact.cast_codes([0], rule)[0]], 0x7F800000
    last = exact.cast_codes([infinity], rule)[0]
    while results[-1] != last:
        low, high = found[-1], infinity
        while high - low > 1:
            middle = (low + high) // 2
            same = exact.cast_codes([middle], rule)[0] == results[-1]
            low, high = (middle, high) if same else (low, middle)
        found.append(high)
        results.append(exact.cast_codes([high], rule)[0])
    return [*found, infinity + 1], [*results, 0xFF]


@pytest.mark.parametrize("saturate", [True, False])
def test_every_float(saturate: bool, exhaustive: bool) -> None:
    """2^32 FLOATs on the host; without --exhaustive those around each step of the model, and some between."""
    firsts, results = steps(saturate)
    assert len(results) == 257 - saturate
    # Of neighbouring codes the step is between them, by the values alone.
    for code in (1, 2, 100, 254):
        one, other = (Fraction(UE5M3.value(each)) for each in (code - 1, code))
        first = exact.decode(FLOAT, firsts[code]).magnitude
        assert math.isclose(first, (one + other) / 2, rel_tol=1e-6)
    size = 1 << 24
    chunks = range(0, 1 << 32, size)
    if not exhaustive:
        near = np.add.outer(np.array(firsts, np.int64), np.arange(-3, 4)).reshape(-1)
        near = np.concatenate([near[near >= 0], np.arange(0, 1 << 31, 49999)])
        chosen = [near.astype(np.uint32) | np.uint32(sign) for sign in (0, 1 << 31)]
    for part in chosen if not exhaustive else (np.arange(size, dtype=np.uint32) + np.uint32(at) for at in chunks):
        found = gpucast.cast(part.view(np.float32), UE5M3, saturate=saturate).view(np.uint8)
        place = np.searchsorted(np.array(firsts, np.uint32), part & np.uint32(0x7FFFFFFF), side="right") - 1
        assert (found == np.array(results, np.uint8)[place]).all()
