# SPDX-License-Identifier: Apache-2.0
"""`gpucast.quantization.repack` keeps every number, or says how many it would change."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import Format, repack
from tests import host_driver

X = np.random.default_rng(2).standard_normal((128, 256)).astype(np.float32)
X[5] = 0
ROW = Format("rows", "FLOAT8E4M3FN", "FLOAT", "axis", "amax")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "axis"),
    [
        ("mxfp4", "nvfp4", None),
        ("mxfp4", "mxfp8e4m3", None),
        ("mxfp4", "float8e4m3fn_1x128", None),
        ("mxfp4", "float8e4m3fn_128x128", None),
        ("mxfp4", "float8e4m3fn_tensor", None),
        ("mxfp4", ROW, 0),
        ("deepgemm-ue8m0", "float8e4m3fn_1x128", None),
        ("te-float8-block", "deepgemm-ue8m0", None),
        ("te-float8-block", ROW, 0),
        ("nvfp4", Format("mine", "FLOAT4E2M1", "FLOAT8E4M3FN", (8,), "amax", global_scale=True), None),  # type: ignore[arg-type]
        ("int4_128", "int8_32", None),
    ],
)
def test_numbers_are_kept(one: Any, other: Any, axis: int | None) -> None:
    x = gpucast.cast(X, "BFLOAT16")
    if one == "te-float8-block" and axis == 0:
        # One scale in all blocks of a row.
        x[:, ::128] = 3
    q = gpucast.quantize(x, one)
    new = repack(q, other, axis=axis)
    assert new.dequantize("DOUBLE").tobytes() == q.dequantize("DOUBLE").tobytes()


def test_codes_stay_where_they_can() -> None:
    q = gpucast.quantize(X, "mxfp4")
    assert repack(q, "nvfp4").data.data.tobytes() == q.data.data.tobytes()


@pytest.mark.parametrize("other", ["nvfp4", "float8e4m3fn_128x128"])
def test_what_would_change_is_counted_and_refused(other: str) -> None:
    x = X.copy()
    x[0, :32] *= 2.0**-40
    q = gpucast.quantize(x, "mxfp4")
    with pytest.raises(ValueError, match=r"repack: \d+ of 32,768 numbers would change from mxfp4 to"):
        repack(q, other)


def test_blocks_that_are_nan_stay_so() -> None:
    x = X.copy()
    x[3, 3] = np.nan
    q = repack(gpucast.quantize(x, "mxfp4"), "nvfp4")
    assert np.isnan(q.dequantize()[3, :32]).all() and not np.isnan(q.dequantize()[3, 32:]).any()


def test_a_given_global_scale_is_compared_as_it_is_stored() -> None:
    q = gpucast.quantize(X, "mxfp4")
    for g in (0.1, 1 / 3):
        with pytest.raises(ValueError, match=r"repack: [\d,]+ of 32,768 numbers would change from mxfp4 to nvfp4"):
            repack(q, "nvfp4", global_scale=g)
    # The nearest FLOAT is 2^-3.
    repacked = repack(q, "nvfp4", global_scale=2**-3 * (1 + 2**-30))
    assert repacked.global_scale == 0.125
    np.testing.assert_array_equal(repacked.dequantize("DOUBLE"), q.dequantize("DOUBLE"))
    # Rounded once: as a DOUBLE the second is midway between two FLOATs, too.
    midway = Fraction(2**24 + 1, 2**27)
    assert repack(q, "nvfp4", global_scale=midway).global_scale == 0.125
    with pytest.raises(ValueError, match="numbers would change"):
        repack(q, "nvfp4", global_scale=midway + Fraction(1, 2**70))


def test_what_is_not_taken() -> None:
    with pytest.raises(TypeError, match="q is ndarray; expected a Quantized"):
        repack(X, "nvfp4")
    for wrong in (0, -1, float("nan"), 1e39):
        with pytest.raises(ValueError, match="must be finite and above 0, as a FLOAT"):
            repack(gpucast.quantize(X, "mxfp4"), "nvfp4", global_scale=wrong)
    with pytest.raises(TypeError, match="global_scale='a' must be a number"):
        repack(gpucast.quantize(X, "mxfp4"), "nvfp4", global_scale="a")
    with pytest.raises(TypeError, match="has zero points"):
        repack(gpucast.quantize(X, "int8_zp_tensor"), "nvfp4")
    with host_driver.installed(host_driver.HostDriver()), pytest.raises(TypeError, match="on a device"):
        repack(gpucast.quantize(gpucast.cast(X, "FLOAT", device="cuda:0"), "mxfp4"), "nvfp4")
