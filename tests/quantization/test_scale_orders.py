# SPDX-License-Identifier: Apache-2.0
"""The orders of scales that other libraries read."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import Format, Quantized, swizzle
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


#: Formats by the ways through the kernels: rows of blocks, both results in tiles, squares, blocks of other lengths, and
#: scales that one more kernel finishes.
CASES = [
    ("mxfp8e4m3", "8x4", False),
    ("mxfp8e4m3", "128x4", "both"),
    ("deepgemm-ue8m0", "mn_major", False),
    ("deepgemm", "mn_major", False),
    ("deepgemm-ue8m0-128x128", "mn_major", True),
    ("tilekernels", "mn_major", False),
    (Format("mine", "INT8", "FLOAT8E8M0", (80,), "floor"), "128x4", False),
]


@pytest.mark.parametrize(("format", "layout", "transpose"), CASES)
def test_quantizing_in_an_order(format: Any, layout: Any, transpose: Any) -> None:
    x = np.random.default_rng(0).standard_normal((66, 640) if transpose is False else (640, 384)).astype(np.float32)
    x[3] = 0
    linear, found = (
        _as_list(gpucast.quantize(x, format, scale_layout=o, transpose=transpose)) for o in ("linear", layout)
    )
    with host_driver.installed(host_driver.HostDriver()) as driver:
        there = gpucast.cast(x, "FLOAT", device="cuda:0")
        result = gpucast.quantize(there, format, scale_layout=layout, transpose=transpose)
        # Padding too is written anew.
        for q in _as_list(result):
            ctypes.memset(q.scales.data.ptr, 0xFF, q.scales.nbytes)
        gpucast.quantize(there, format, scale_layout=layout, transpose=transpose, out=result)
        assert not any("swizzle" in name for name, _ in driver.launched)
        on_device = [q.get() for q in _as_list(result)]
    for plain, q, other in zip(linear, found, on_device, strict=True):
        assert np.array_equal(q.linear_scales(), plain.scales) and np.array_equal(q.dequantize(), plain.dequantize())
        assert plain.with_layout(layout).scales.tobytes() == q.scales.tobytes() == other.scales.tobytes()
        assert np.array_equal(other.dequantize(), q.dequantize())


def test_given_scales_and_transforms_on_a_device() -> None:
    """Their kernels write linear scales, which one more kernel moves."""
    x = np.random.default_rng(1).standard_normal((66, 256)).astype(np.float32)
    calls: list[tuple[str, Any, dict[str, Any]]] = [
        ("float8e4m3fn_1x128", "mn_major", {"scale": 0.5}),
        ("nvfp4", "128x4", {"hadamard": 16}),
    ]
    with host_driver.installed(host_driver.HostDriver()) as driver:
        there = gpucast.cast(x, "FLOAT", device="cuda:0")
        for format, layout, more in calls:
            q = gpucast.quantize(there, format, scale_layout=layout, **more)
            assert gpucast.quantize(there, format, scale_layout=layout, out=q, **more) is q
            assert "swizzle" in driver.launched[-1][0]
            assert q.get().scales.tobytes() == gpucast.quantize(x, format, scale_layout=layout, **more).scales.tobytes()


def _as_list(q: Any) -> list[Quantized]:
    return list(q) if isinstance(q, tuple) else [q]


@pytest.mark.parametrize(
    ("format", "layout", "shape"),
    [("deepgemm", "8x4", (4, 128)), ("int8_axis", "mn_major", (4, 128)), ("deepgemm", "mn_major", (2, 4, 128))],
)
def test_formats_without_that_order(format: str, layout: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"scale_layout='{layout}' is for"):
        gpucast.quantize(np.ones(shape, np.float32), format, scale_layout=layout)
