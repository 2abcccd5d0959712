# SPDX-License-Identifier: Apache-2.0
"""Quantizing on a real GPU. The siblings in tests/quantization/test_quantization_device.py run the same code without
one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpu_quantize_calls as calls
import gpucast
import quotient_cases
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import dtype
from gpucast.core.formats import Parts
from gpucast.core.fused_ops import Random
from gpucast.quantization import Quantized, quantize, quantize_on_host
from gpucast.reference import exact_quantize
from quantization_cases import ALL, same

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


@pytest.mark.parametrize("name", calls.EDGES)
def test_edges_of_blocks(name: str, exhaustive: bool) -> None:
    format = ALL[name]
    for row in calls.sources(name, exhaustive):
        for x, keywords, back in calls.edges(name, row):
            q = quantize(x, name, device="cuda", **keywords)
            expected = exact_quantize.quantize(x, format, **keywords)
            compare(q, expected)
            on_host = gpucast.cast(q.dequantize(back), back, device="cpu")
            assert same(on_host, exact_quantize.dequantize(expected, format, row, **keywords))


@pytest.mark.parametrize("name", calls.RANDOM_DATA)
@pytest.mark.parametrize("source", calls.USUAL)
def test_much_random_data(name: str, source: str) -> None:
    for x, keywords, _ in calls.random_data(name, source):
        compare(quantize(x, name, device="cuda", **keywords), quantize_on_host.quantize(x, ALL[name]))


@pytest.mark.parametrize("source", calls.QUOTIENT_SOURCES)
@pytest.mark.parametrize("name", calls.QUOTIENTS)
def test_quotients_beside_midpoints(name: str, source: str) -> None:
    """By the device's own conversions, where it has them."""
    quotient_cases.check_device(name, source, 400)


@pytest.mark.parametrize("source", calls.USUAL)
def test_scales_and_quotients_of_blocks_beside_midpoints(source: str) -> None:
    quotient_cases.check_device_blocks(source, 60)


@pytest.mark.parametrize("name", calls.BOTH_WAYS)
def test_both_ways_and_the_other_axis(name: str, exhaustive: bool) -> None:
    """In one read; siblings: tests/quantization/test_quantization_tiles.py."""
    format = ALL[name]
    for row in calls.sources(name, exhaustive):
        for x, keywords, _ in calls.directions(name, row):
            views = {False: [x], True: [np.ascontiguousarray(x.T)]}
            views["both"] = views[False] + views[True]
            made = quantize(x, name, device="cuda", **keywords)
            results = made if isinstance(made, tuple) else (made,)
            for q, view in zip(results, views[keywords["transpose"]], strict=True):
                compare(q, quantize_on_host.quantize(view, format, axis=keywords["axis"]))


@pytest.mark.parametrize("name", calls.MANY_TILES)
@pytest.mark.parametrize("source", calls.USUAL)
def test_many_tiles(name: str, source: str) -> None:
    format = ALL[name]
    for x, keywords, _ in calls.tiles(name, source):
        made = quantize(x, name, device="cuda", **keywords)
        if "transpose" not in keywords:
            compare(made, quantize_on_host.quantize(x, format, **keywords))
            continue
        random = Random(keywords["seed"], keywords["offset"]) if "rounding" in keywords else None
        for q, view in zip(made, (x, np.ascontiguousarray(x.swapaxes(-1, -2))), strict=True):
            compare(q, quantize_on_host.quantize(view, format, random=random))


def test_rounding_at_random_layouts_and_transposes() -> None:
    x = np.random.default_rng(2).standard_normal((130, 256)).astype(np.float32)
    for name in calls.AT_RANDOM:
        q = quantize(x, name, device="cuda", rounding="stochastic", seed=3, offset=5)
        compare(q, quantize_on_host.quantize(x, ALL[name], random=Random(3, 5)))
    one, other = quantize(x, "mxfp4", device="cuda", scale_layout="linear", transpose="both")
    compare(one, quantize_on_host.quantize(x, ALL["mxfp4"]))
    compare(other, quantize_on_host.quantize(np.ascontiguousarray(x.T), ALL["mxfp4"]))
    swizzled = quantize(x, "mxfp4", device="cuda", scale_layout="128x4").get()
    assert same(swizzled.scales, quantize(x, "mxfp4", scale_layout="128x4").scales)
    assert swizzled.dtype is dtype("FLOAT")


def test_elements_at_odd_addresses() -> None:
    """A device stops at them, so they are copied first."""
    x = np.random.default_rng(4).standard_normal((20, 64)).astype(np.float32)
    expected = quantize_on_host.quantize(x, ALL["nvfp4"])
    q = quantize(at_odd_address(x), "nvfp4")
    compare(q, expected)
    moved = Quantized(q.data, q.scales, q.format, global_scale=at_odd_address(expected.global_scale))
    back = gpucast.cast(moved.dequantize(), "FLOAT", device="cpu")
    assert same(back, exact_quantize.dequantize(expected, ALL["nvfp4"]))


def at_odd_address(x: np.ndarray) -> Any:
    import cupy

    there = gpucast.cast(np.append(np.zeros(1, np.uint8), x.reshape(-1).view(np.uint8)), "UINT8", device="cuda")
    return cupy.ndarray(x.shape, x.dtype, there.data + 1)
