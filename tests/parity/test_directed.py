# SPDX-License-Identifier: Apache-2.0
"""Casts that round in a direction: text, fused casts and layouts on both sides, and what a report counts.

`tests/parity/test_matrix.py` has their rules for every pair.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import exact
import gpucast
from codes import assert_same, random_codes
from fused_cases import in_use, on_host, to_device
from gpucast.core import strings
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.rule import DIRECTED, Options, holds, resolve
from gpucast.reference import exact_cast

FLOATS = [kind for kind in DTYPES if kind.family == "float"]


def texts(count: int) -> list[str]:
    """Numbers of all sizes, exact ones, and neighbours of exact ones far behind the point."""
    draw = random.Random(5)
    few = [
        "0",
        "-0.0",
        "1e999",
        "-1e999",
        "1e-999",
        "-1e-999",
        "inf",
        "-INF",
        "nan",
        "65504",
        "448.000" + "0" * 40 + "1",
    ]
    many = [f"{draw.uniform(-10, 10)!r}e{draw.randint(-60, 60)}" for _ in range(count)]
    near = [f"{draw.choice('-+')}{draw.randint(0, 600)}.{draw.choice(('', '5', '0' * 50 + '1'))}" for _ in range(count)]
    return few + many + near


@pytest.mark.parametrize("rounding", DIRECTED)
@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_text_is_rounded_once(dst: Any, rounding: Any) -> None:
    given = texts(60)
    rule = resolve(dtype("STRING"), dst, Options(rounding=rounding))
    numbers = [strings.parse(text, 0) for text in given]
    wanted = [exact.cast(exact.ExactNumber(one.kind, one.negative, one.magnitude), rule) for one in numbers]
    found = gpucast.cast(given, dst, rounding=rounding).view(dst.code_numpy)
    assert found.tolist() == wanted
    assert exact_cast.cast(np.array(given, object), dst, rounding=rounding).view(dst.code_numpy).tolist() == wanted


CALLS = [
    ("FLOAT", "FLOAT8E4M3FN", "upward", None),
    ("FLOAT", "FLOAT16", "toward_zero", 0.1),
    ("INT64", "BFLOAT16", "odd", None),
    ("BFLOAT16", "FLOAT6E2M3", "downward", 0.375),
    ("DOUBLE", "FLOAT", "odd", 0.1),
    ("FLOAT16", "FLOAT4E2M1", "upward", None),
]


@pytest.mark.parametrize(("src", "dst", "rounding", "scale"), CALLS)
def test_calls_on_both_sides(src: str, dst: str, rounding: Any, scale: float | None) -> None:
    base = random_codes(dtype(src), (24, 37), 7).view(dtype(src).numpy)
    with np.errstate(all="ignore"):
        exactly = base if scale is None else exact_cast.cast(base, "DOUBLE") * np.float64(scale)
    wanted = exact_cast.cast(exactly, dst, rounding=rounding)
    keywords: dict[str, Any] = {"rounding": rounding} | ({} if scale is None else {"scale": scale})
    with in_use():
        for x in (base, to_device(base)):
            for _ in range(2):
                assert_same(elements(gpucast.cast(x, dst, **keywords)), wanted)
                assert_same(elements(gpucast.cast(x.T, dst, **keywords)), wanted.T)
                assert_same(elements(gpucast.cast(x[:, ::2], dst, **keywords)), wanted[:, ::2])


def elements(y: Any) -> np.ndarray:
    return y if isinstance(y, np.ndarray) else on_host(y)


def test_a_type_that_holds_all_numbers_rounds_none() -> None:
    for src in DTYPES[:12]:
        for dst in FLOATS:
            rule = resolve(src, dst, Options(rounding="odd"))
            assert (rule.rounding == "odd") == (src is not dst and not holds(dst, src))
            if src.family != "string" and src.bits <= 16 and holds(dst, src):
                some = range(0, 1 << src.bits, 1 if src.bits <= 8 else 29)
                every = [exact.decode(src, code).magnitude for code in some]
                codes = [exact.round_magnitude(one, dst) for one in every]
                assert [exact.decode(dst, code).magnitude for code in codes] == every


def test_a_report_counts_what_stays_at_the_largest_number_as_saturated() -> None:
    x = np.float32([1e9, -1e9, 65504, 1e-12, np.inf])
    to_zero, up = (gpucast.cast_report(x, "FLOAT16", rounding=rounding) for rounding in ("toward_zero", "upward"))
    assert (to_zero.saturated, to_zero.infinite, to_zero.underflowed) == (2, 0, 1)
    assert (up.saturated, up.infinite, up.underflowed) == (1, 1, 0)
