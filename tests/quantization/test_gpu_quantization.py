# SPDX-License-Identifier: Apache-2.0
"""Quantizing on a real GPU. The siblings in tests/quantization/test_quantization_device.py run the same code without
one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
import quotient_cases
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.core.formats import SOURCES, Parts
from gpucast.core.random import Random
from gpucast.quantization import FORMATS, Quantized, quantize
from gpucast.quantization.cpu import quantize as host
from gpucast.reference import quantize as reference
from quantization_cases import LENGTH, matrix, same

PROBLEM = gpucast.gpu.devices.unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(PROBLEM is not None, reason=f"siblings run without a GPU: {PROBLEM}")]


def compare(q: Quantized, expected: Parts) -> None:
    q = q.get()
    data = q.data.get() if isinstance(q.data, PackedArray) else q.data
    for name, part in (
        ("data", data),
        *((name, getattr(q, name)) for name in ("scales", "zero_points", "global_scale")),
    ):
        assert same(part, getattr(expected, name)), (q, name)


@pytest.mark.parametrize("name", FORMATS)
def test_edges_of_blocks(name: str) -> None:
    format = FORMATS[name]
    for row in SOURCES:
        x = matrix(format, row.name)
        for view, axis in ((x, 1), (x.T, 0), (x[:, : LENGTH // 128 * 128], 1)):
            q = quantize(view, name, axis=axis, device="cuda")
            expected = reference.quantize(view, format, axis=axis)
            compare(q, expected)
            back = gpucast.cast(q.dequantize(row), row, device="cpu")
            assert same(back, reference.dequantize(expected, format, row, axis=axis))


@pytest.mark.parametrize(
    "name", ["float8e4m3fn_tensor", "float8e4m3fn_128x128", "mxfp8e4m3", "mxfp4", "nvfp4", "int4_128"]
)
@pytest.mark.parametrize("source", ["FLOAT", "BFLOAT16"])
def test_much_random_data(name: str, source: str) -> None:
    x = gpucast.cast(np.random.default_rng(1).standard_normal((1000, 4096)).astype(np.float32), source)
    compare(quantize(x, name, device="cuda"), host.quantize(x, FORMATS[name]))


@pytest.mark.parametrize("source", ["FLOAT", "BFLOAT16", "FLOAT16"])
@pytest.mark.parametrize("name", ["float8e4m3fn_axis", "float8e5m2_axis", "int8_axis", "int4_axis", "int2_axis"])
def test_quotients_beside_midpoints(name: str, source: str) -> None:
    """By the device's own conversions, where it has them."""
    quotient_cases.check_device(name, source, 400)


@pytest.mark.parametrize("source", ["FLOAT", "BFLOAT16"])
def test_scales_and_quotients_of_blocks_beside_midpoints(source: str) -> None:
    quotient_cases.check_device_blocks(source, 60)


@pytest.mark.parametrize("name", [name for name in FORMATS if "axis" not in name])
def test_both_ways_and_the_other_axis(name: str) -> None:
    """In one read; siblings: tests/quantization/test_quantization_tiles.py."""
    format = FORMATS[name]
    for row in SOURCES:
        x = matrix(format, row.name)[:, : LENGTH - 1]
        turned = np.ascontiguousarray(x.T)
        for axis in (-1, -2):
            expected = [host.quantize(view, format, axis=axis) for view in (x, turned)]
            for q, one in zip(quantize(x, name, axis=axis, transpose="both", device="cuda"), expected, strict=True):
                compare(q, one)
            compare(quantize(x, name, axis=axis, transpose=True, device="cuda"), expected[1])
            compare(quantize(x, name, axis=axis, device="cuda"), expected[0])


@pytest.mark.parametrize("name", ["mxfp8e4m3", "mxfp6e3m2", "mxfp4", "nvfp4", "float8e4m3fn_1x128", "int4_zp_128"])
@pytest.mark.parametrize("source", ["FLOAT", "BFLOAT16"])
def test_many_tiles(name: str, source: str) -> None:
    """Whole tiles, ragged ones, and rows that are not aligned."""
    for shape in ((1024, 2048), (3, 200, 328), (1000, 250)):
        x = gpucast.cast(np.random.default_rng(1).standard_normal(shape).astype(np.float32), source)
        for q, view in zip(
            quantize(x, name, transpose="both", device="cuda"),
            (x, np.ascontiguousarray(x.swapaxes(-1, -2))),
            strict=True,
        ):
            compare(q, host.quantize(view, FORMATS[name]))
        compare(quantize(x, name, axis=-2, device="cuda"), host.quantize(x, FORMATS[name], axis=-2))
    if FORMATS[name].element.family == "float":
        at_random = quantize(x, name, transpose="both", device="cuda", rounding="stochastic", seed=3, offset=5)
        for q, view in zip(at_random, (x, np.ascontiguousarray(x.T)), strict=True):
            compare(q, host.quantize(view, FORMATS[name], random=Random(3, 5)))


def test_rounding_at_random_layouts_and_transposes() -> None:
    x = np.random.default_rng(2).standard_normal((130, 256)).astype(np.float32)
    for name in ("mxfp6e3m2", "nvfp4", "float8e4m3fn_1x128"):
        q = quantize(x, name, device="cuda", rounding="stochastic", seed=3, offset=5)
        compare(q, host.quantize(x, FORMATS[name], random=Random(3, 5)))
    one, other = quantize(x, "mxfp4", device="cuda", scale_layout="linear", transpose="both")
    compare(one, host.quantize(x, FORMATS["mxfp4"]))
    compare(other, host.quantize(np.ascontiguousarray(x.T), FORMATS["mxfp4"]))
    swizzled = quantize(x, "mxfp4", device="cuda", scale_layout="128x4").get()
    assert same(swizzled.scales, quantize(x, "mxfp4", scale_layout="128x4").scales)
    assert swizzled.dtype is dtype("FLOAT")


def test_elements_at_odd_addresses() -> None:
    """A device stops at them, so they are copied first."""
    x = np.random.default_rng(4).standard_normal((20, 64)).astype(np.float32)
    expected = host.quantize(x, FORMATS["nvfp4"])
    q = quantize(at_odd_address(x), "nvfp4")
    compare(q, expected)
    moved = Quantized(q.data, q.scales, q.format, global_scale=at_odd_address(expected.global_scale))
    back = gpucast.cast(moved.dequantize(), "FLOAT", device="cpu")
    assert same(back, reference.dequantize(expected, FORMATS["nvfp4"]))


def at_odd_address(x: np.ndarray) -> Any:
    import cupy

    there = gpucast.cast(np.append(np.zeros(1, np.uint8), x.reshape(-1).view(np.uint8)), "UINT8", device="cuda")
    return cupy.ndarray(x.shape, x.dtype, there.data + 1)
