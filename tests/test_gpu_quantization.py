# SPDX-License-Identifier: Apache-2.0
"""Quantizing on a real GPU. The siblings in tests/test_quantization_device.py run the same code without one."""

from __future__ import annotations

import numpy as np
import pytest

import gpucast
from gpucast.dtypes import dtype
from gpucast.packed import PackedArray
from gpucast.quantization import FORMATS, Quantized, host, quantize, reference
from gpucast.quantization.formats import SOURCES, Parts
from gpucast.random_bits import Random
from quantization_cases import LENGTH, matrix, same

PROBLEM = gpucast.device.unavailable()
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
