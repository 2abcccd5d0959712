# SPDX-License-Identifier: Apache-2.0
"""Casts by the host's library with a scale, or that look at their source: the bits of NumPy's path; who takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.arrays.packed import PackedArray
from gpucast.casting.fused import fused_rule
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.fused_ops import FusedInputs
from gpucast.core.options import Options
from gpucast.core.random import Random
from gpucast.core.rule import STOCHASTIC, CastRule, has_stochastic, resolve
from gpucast.cpu import compiled
from gpucast.cpu import fused as host_fused
from gpucast.native import cast as native_cast
from gpucast.native import fused as native_fused
from gpucast.native import library as host_native
from gpucast.native import threads
from gpucast.parity import hard_values

NUMERIC = [kind for kind in DTYPES if kind.family != "string"]
#: The sources of every run; with --exhaustive all are, and all rules.
ALWAYS = ("FLOAT", "BFLOAT16", "FLOAT16", "DOUBLE", "INT64", "FLOAT8E4M3FNUZ", "INT4")
#: FLOATs; others, whose products leave the ranges of FLOAT and of DOUBLE; and those that scales of arrays may be.
SCALES = (2.0**-10, float(np.float32(0.1)), 0.1, 1e300, -3e-310, 0.0, float("inf"), float("nan"))
RANDOM = Random(7, 2**64 - 2050)


def found(rule: CastRule, is_scaled: bool) -> native_fused.FusedCast:
    native_fused.find(rule, is_scaled, 1)
    host_native.finish()
    cast = native_fused.find(rule, is_scaled)
    assert cast is not None, rule
    return cast


@contextmanager
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "READY", {})
        for finders in ("FINDERS", "FUSED_FINDERS"):
            patch.setattr(compiled, finders, [])
        yield


def rules(src: DType, is_scaled: bool, exhaustive: bool) -> list[CastRule]:
    """Those of every destination, and a seeded share of all others."""
    double = dtype("DOUBLE")
    of = double if is_scaled else src
    plain = [*native_cast._rules(of), *([CastRule(double, double, overflow="infinity")] if is_scaled else [])]
    at_random = [
        replace(resolve(of, dst), rounding=STOCHASTIC) for dst in NUMERIC if dst is not src and has_stochastic(dst)
    ]
    rng = np.random.default_rng(5)
    return [
        replace(rule, src=src)
        for rule in [*plain, *at_random]
        if exhaustive or rule == resolve(of, rule.dst) or rng.random() < 0.1
    ]


def codes_of(src: DType, dst: DType) -> np.ndarray[Any, Any]:
    if src.bits > 16:
        return hard_values.codes(src, dst, seed=3, share=0.02, random=3_000)
    return np.resize(np.arange(1 << src.bits), 1 << 14).astype(src.code_numpy)


@pytest.mark.parametrize("is_scaled", [True, False], ids=["scale", "amax alone"])
@pytest.mark.parametrize("src", [kind.name for kind in NUMERIC])
def test_results_are_those_of_numpy(
    src: str, is_scaled: bool, native: None, exhaustive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if src not in ALWAYS and not exhaustive:
        pytest.skip("with --exhaustive")
    asked = rules(dtype(src), is_scaled, exhaustive)
    assert {rule.dst for rule in asked} >= set(NUMERIC) - {dtype(src)}
    for rule in asked:
        cast, codes = found(rule, is_scaled), codes_of(rule.src, rule.dst)
        # In blocks without NaN and very small numbers fewer checks are made.
        codes = np.concatenate([codes, np.sort(codes)])
        for scale in SCALES if is_scaled else (None,):
            given, out, wanted = inputs(rule, scale), *np.empty((2, codes.size), rule.dst.code_numpy)
            largest, finite = cast(codes, out, given)
            with no_library(monkeypatch):
                host_fused.one_pass(codes.view(rule.src.numpy), rule, given, wanted.view(rule.dst.numpy))
            assert largest == given.amax.view(np.uint32), (rule, scale)
            assert finite == given.finite, (rule, scale)
            wrong = np.flatnonzero(out != wanted)
            assert not wrong.size, (rule, scale, hex(codes[wrong[0]]), hex(out[wrong[0]]), hex(wanted[wrong[0]]))


def inputs(rule: CastRule, scale: float | None) -> FusedInputs:
    random = RANDOM if rule.rounding == STOCHASTIC else None
    return FusedInputs(scale, np.zeros((), np.float32), np.ones((), np.uint8), random)


@pytest.mark.parametrize("src", ["FLOAT", "DOUBLE", "FLOAT8E5M2"])
def test_largest_magnitudes_of_finite_numbers(src: str, native: None) -> None:
    rule = fused_rule(dtype(src), dtype("FLOAT16"), scaled=True)
    x = gpucast.cast(np.random.default_rng(8).standard_normal(5000) * 100, src)
    out = np.empty(x.size, np.uint16)
    largest, finite = found(rule, True)(x.view(rule.src.code_numpy), out, inputs(rule, 0.3))
    assert finite
    assert largest == np.abs(gpucast.cast(x, "FLOAT")).max().view(np.uint32)


@pytest.mark.parametrize(
    ("to", "keywords"),
    [
        (to, keywords)
        for to in ("FLOAT8E4M3FN", "BFLOAT16", "FLOAT6E2M3", "INT8", "DOUBLE")
        for keywords in ({"scale": 0.3}, {"scale": np.float32(0.3)}, {})
    ]
    + [
        ("FLOAT16", {**keywords, "rounding": STOCHASTIC, "seed": 5, "offset": 2**64 - 999})
        for keywords in ({"scale": 0.3}, {})
    ],
)
def test_public_casts_take_it(to: str, keywords: dict[str, Any], native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((70, 81)).astype(np.float32)
    x[3, :5] = np.nan, np.inf, -np.inf, -0.0, 1e30
    strided = np.empty((70, 162), np.float32)[:, ::2]
    strided[...] = x
    given = [x, np.asfortranarray(x), strided, x.astype(">f4"), x[:69]]

    def results() -> list[bytes]:
        all_bits = []
        for one in given:
            amax = np.full(1, 2.0, np.float32)
            all_bits += [gpucast.cast(one, to, amax=amax, **keywords).tobytes(), amax.tobytes()]
        return all_bits

    with no_library(monkeypatch):
        wanted = results()
    is_scaled = "scale" in keywords
    rule = fused_rule(dtype("FLOAT"), dtype(to), Options(rounding=keywords.get("rounding")), scaled=is_scaled)
    found(rule, is_scaled)
    seen: list[int] = []
    plain = native_fused.FusedCast.__call__

    def note(self: native_fused.FusedCast, x: Any, out: Any, fused: FusedInputs) -> Any:
        seen.append(x.size)
        return plain(self, x, out, fused)

    monkeypatch.setattr(native_fused.FusedCast, "__call__", note)
    assert results() == wanted
    assert sum(seen) == sum(one.size for one in given)
    gpucast.cast(x[0], to, amax=np.zeros(1, np.float32), **keywords)
    assert sum(seen) == sum(one.size for one in given), "short arrays do not look for it"


def test_packed_arrays_take_it(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = PackedArray.pack(gpucast.cast(np.arange(200_000) % 16, "UINT4"))
    with no_library(monkeypatch):
        wanted = gpucast.cast(x, "FLOAT6E2M3", scale=0.1).tobytes()
    found(fused_rule(dtype("UINT4"), dtype("FLOAT6E2M3"), scaled=True), True)
    assert gpucast.cast(x, "FLOAT6E2M3", scale=0.1).tobytes() == wanted


@pytest.mark.parametrize("rounding", [None, STOCHASTIC])
def test_results_do_not_depend_on_threads(rounding: Any, native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(4).standard_normal(100_003).astype(np.float32)
    x[70_000] = 50.0
    rule = fused_rule(dtype("FLOAT"), dtype("BFLOAT16"), scaled=True)
    rule = replace(rule, rounding=rounding or rule.rounding)
    cast = found(rule, True)
    out, wanted = np.empty((2, x.size), np.uint16)
    assert cast(x.view(np.uint32), wanted, inputs(rule, 0.7)) == (np.float32(50).view(np.uint32), True)
    monkeypatch.setattr(threads, "PART", 1 << 14)
    monkeypatch.setattr(threads, "most", lambda: 5)
    assert cast(x.view(np.uint32), out, inputs(rule, 0.7)) == (np.float32(50).view(np.uint32), True)
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Real(x[i]) * by)", "Real(x[i]) * by + by)"),
        ("*largest > top", "*largest < top"),
        ("*finite = 0", "*finite = 1"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(
    right: str, wrong: str, native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = native_fused.fused_unit()
    assert right in unit.text
    bad = replace(unit, text=unit.text.replace(right, wrong))
    monkeypatch.setattr(native_fused, "fused_unit", lambda: bad)
    rule = fused_rule(dtype("FLOAT16"), dtype("FLOAT"), scaled=True)
    for _ in range(2):
        assert native_fused.find(rule, True, 1) is None
        host_native.finish()
    assert native_fused._parts(rule, True, 1) is not None
    assert host_native.library(native_fused.fused_unit) is not None
