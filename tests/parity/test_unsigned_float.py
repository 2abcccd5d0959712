# SPDX-License-Identifier: Apache-2.0
"""FLOAT8UE5M3, the float without a sign: its codes and its rule (semantics, rule 12). Its pairs: `test_matrix.py`."""

from __future__ import annotations

import numpy as np
import pytest

import exact
import gpucast
from gpucast.core.dtypes import dtype

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


def test_onnx_has_no_number_for_it() -> None:
    assert UE5M3.number is UE5M3.opset is None
    for keywords in ({"opset": 28}, {"opset": 27}, {"opset": 1}):
        with pytest.raises(TypeError, match=r"^cast: to=FLOAT8UE5M3 is in no opset; opset="):
            gpucast.cast(np.float32([1]), UE5M3, **keywords)
    with pytest.raises(TypeError, match=r"^cast_like: to=FLOAT8UE5M3 is in no opset"):
        gpucast.cast_like(np.float32([1]), of_codes([0]), opset=28)
    assert to_codes(np.float32([1])) == [0x78]
