# SPDX-License-Identifier: Apache-2.0
"""The orders of scales that other libraries read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import swizzle
from tests import host_driver


def _scales(rows: int, columns: int, kind: Any = np.uint8) -> Any:
    return np.arange(1, rows * columns + 1).astype(kind).reshape(rows, columns)


def test_8x4_is_the_order_of_vllm() -> None:
    """Its tests read it back so (vllm/tests/kernels/quantization/nvfp4_utils.py)."""
    scales = _scales(20, 10)
    moved = swizzle.swizzle(scales, layout="8x4")
    tiles = moved.reshape(3, 3, 8, 4).transpose(0, 2, 1, 3).reshape(24, 12)
    assert moved.shape == (24 * 12,) and np.array_equal(tiles[:20, :10], scales) and not tiles[20:].any()


def test_mn_major_is_the_order_of_deepgemm() -> None:
    """INT32 words of four scales of a row, one column of words after the other, of a multiple of 4 rows."""
    scales = _scales(6, 10)
    words = swizzle.swizzle(scales, layout="mn_major").view("<u4").reshape(3, 8)
    padded = np.pad(scales, ((0, 2), (0, 2)))
    assert np.array_equal(words, np.ascontiguousarray(padded).view("<u4").T)
    floats = swizzle.swizzle(_scales(6, 10, np.float32), layout="mn_major").reshape(10, 8)
    assert np.array_equal(floats[:, :6], _scales(6, 10, np.float32).T) and not floats[:, 6:].any()


@pytest.mark.parametrize("layout", swizzle.LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1), (130, 9), (8, 4), (128, 4)])
def test_the_way_back(layout: Any, shape: tuple[int, int]) -> None:
    scales = _scales(*shape)
    assert np.array_equal(swizzle.unswizzle(swizzle.swizzle(scales, layout=layout), shape, layout=layout), scales)


@pytest.mark.parametrize(
    ("format", "layout"), [("mxfp8e4m3", "8x4"), ("deepgemm-ue8m0", "mn_major"), ("deepgemm", "mn_major")]
)
def test_quantizing_in_an_order(format: str, layout: Any) -> None:
    x = np.random.default_rng(0).standard_normal((70, 640)).astype(np.float32)
    linear, q = (gpucast.quantize(x, format, scale_layout=one) for one in ("linear", layout))
    assert np.array_equal(q.linear_scales(), linear.scales) and np.array_equal(q.dequantize(), linear.dequantize())
    assert np.array_equal(linear.with_layout(layout).scales, q.scales)
    with host_driver.installed(host_driver.HostDriver()):
        on_device = gpucast.quantize(gpucast.cast(x, "FLOAT", device="cuda:0"), format, scale_layout=layout)
        assert np.array_equal(on_device.get().scales, q.scales)
        assert np.array_equal(on_device.with_layout("linear").get().scales, linear.scales)


@pytest.mark.parametrize(
    ("format", "layout", "shape"),
    [("deepgemm", "8x4", (4, 128)), ("int8_axis", "mn_major", (4, 128)), ("deepgemm", "mn_major", (2, 4, 128))],
)
def test_formats_without_that_order(format: str, layout: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"scale_layout='{layout}' is for"):
        gpucast.quantize(np.ones(shape, np.float32), format, scale_layout=layout)
