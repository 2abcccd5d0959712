# SPDX-License-Identifier: Apache-2.0
"""The host's loops that work with FLOATs give the results of those with DOUBLEs, which other tests hold against the
reference: for all numbers of 16 bits, random FLOATs, and all codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpucast import cast
from gpucast.core import extension
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS, quantize_on_host
from gpucast.quantization.block_grid import BlockGrid
from gpucast.quantization.formats import Format, Parts

NDArray = npt.NDArray[Any]

pytestmark = pytest.mark.skipif(extension.MODULE is None, reason="the reference has no loops")
QUANTIZED = (
    "float8e4m3fn_axis", "float8e5m2_axis", "int8_axis", "int4_zp_axis", "int4_32", "int2_64", "uint8_zp_128",
    "float8e4m3fn_1x128", "nvfp4", "nvfp4_ue5m3", "nvfp4_16x16",
)  # fmt: skip


def finite(name: str, rng: np.random.Generator) -> NDArray:
    """All finite numbers of a type of 16 bits, or some FLOATs of all sizes, in another order."""
    if name != "FLOAT":
        x: NDArray = np.arange(1 << 16, dtype=np.uint16).view(dtype(name).numpy)
    else:
        x = np.concatenate([rng.integers(0, 1 << 32, 1 << 15), rng.integers(0x3E000000, 0x41000000, 1 << 15)])
        x = x.astype(np.uint32).view(np.float32)
    return rng.permutation(x[np.isfinite(cast(x, "FLOAT"))])


def divisors(count: int, format: Format, rng: np.random.Generator) -> NDArray:
    """Positive FLOATs of few and of many bits, most of them near 1; with a global scale times numbers of four bits."""
    free = rng.choice([0, 1, 3, 6, 12, 23], count)
    exponent = np.where(rng.random(count) < 0.7, rng.integers(120, 136, count), rng.integers(1, 254, count))
    bits = rng.integers(0, 1 << 23, count) >> (23 - free) << (23 - free) | exponent << 23
    found: NDArray = bits.astype(np.uint32).view(np.float32).astype(np.float64)
    return found * rng.integers(8, 16, count) * 2.0 ** rng.integers(-9, 5, count) if format.global_scale else found


@pytest.mark.parametrize("source", ["BFLOAT16", "FLOAT16", "FLOAT"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quotients(name: str, source: str) -> None:
    rng, format = np.random.default_rng(52), FORMATS[name]
    x = np.resize(finite(source, rng), (16, 1 << 16))
    for axis, columns in ((0, x.shape[1]), (1, 2080)) if format.block == "axis" else ((1, x.shape[1]),):
        own = np.ascontiguousarray(x[:, -columns:])
        grid = BlockGrid.of(format, own.shape, axis)
        d, lost = divisors(int(np.prod(grid.counts)), format, rng).reshape(grid.counts), np.zeros(grid.counts, bool)
        zero = np.zeros(grid.counts, np.int32)
        if format.zero_points:
            zero = rng.integers(int(format.element.min), int(format.element.max) + 1, grid.counts).astype(np.int32)
        assert quantize_on_host._quick_run(own, format, d)
        quick, slow = (
            quantize_on_host._codes(own.reshape(grid.shape), grid, format, d, zero, lost, is_quick, None)
            for is_quick in (True, False)
        )
        assert quick.tobytes() == slow.tobytes()


@pytest.mark.parametrize("to", ["FLOAT", "BFLOAT16", "FLOAT16"])
@pytest.mark.parametrize("name", FORMATS)
def test_products(name: str, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, format = np.random.default_rng(53), FORMATS[name]
    data = rng.integers(0, 256, (96, 2304), np.uint8) & np.uint8(format.element.code_mask)
    shape = format.scales_shape(data.shape, -1)
    # Scales near 1, and of any size and sign, NaN and infinity as well.
    for first, last in ((0.4, 0.6), (0, 1)):
        codes = rng.integers(int(first * (1 << format.scale.bits)), int(last * (1 << format.scale.bits)), shape)
        scales = codes.astype(format.scale.code_numpy).view(format.scale.numpy)
        zeros = None
        if format.zero_point is not None:
            zeros = rng.integers(0, 256, shape).astype(np.uint8).view(format.zero_point.numpy)
        whole = np.asarray(rng.standard_normal(), np.float32) if format.global_scale else None
        parts = Parts(data.view(format.element.numpy), scales, zeros, whole)
        quick = quantize_on_host.dequantize(parts, format, dtype(to))
        with monkeypatch.context() as patched:
            products = quantize_on_host.products(format, dtype(to))
            products.in_floats = products.to_from_floats = 0
            patched.setattr(quantize_on_host, "products", lambda *_, products=products: products)
            slow = quantize_on_host.dequantize(parts, format, dtype(to))
        assert quick.tobytes() == slow.tobytes()
