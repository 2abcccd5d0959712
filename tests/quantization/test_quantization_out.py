# SPDX-License-Identifier: Apache-2.0
"""`out=` of quantize and dequantize: a new result in memory of the caller, or an error and no change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import Quantized
from host_driver import HostDriver, download, installed, upload
from quantization_cases import bytes_of

X = np.random.default_rng(3).standard_normal((6, 256)).astype(np.float32)
FORMATS = ("mxfp8e4m3", "mxfp4", "nvfp4", "int8_axis", "float8e4m3fn_tensor", "int4_zp_32", "mxfp6e3m2")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("transpose", [False, True, "both"])
def test_results_on_the_host(name: str, transpose: Any) -> None:
    out = gpucast.quantize(X, name, transpose=transpose)
    held = out if isinstance(out, tuple) else (out,)
    places = [part for q in held for part in q.parts().values()]
    assert gpucast.quantize(-X, name, transpose=transpose, out=out) is out
    wanted = gpucast.quantize(-X, name, transpose=transpose)
    for q, other in zip(held, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert bytes_of(q) == bytes_of(other)
        y = np.full((2 * q.shape[0], q.shape[1]), 7, np.float32)[::2]
        assert q.dequantize(out=y) is y and np.array_equal(y, other.dequantize())
    assert all(a is b for a, b in zip(places, (part for q in held for part in q.parts().values()), strict=True))


def test_strided_arrays_on_a_device() -> None:
    with installed(HostDriver()):
        x = upload(np.repeat(X, 2, axis=1))[:, ::2]
        q = gpucast.quantize(x, "mxfp8e4m3")
        gpucast.quantize(upload(-X), "mxfp8e4m3", out=q)
        wanted = gpucast.quantize(-X, "mxfp8e4m3")
        assert download(q.data).tobytes() == wanted.data.tobytes()
        y = upload(np.zeros((6, 512), np.float32))[:, ::2]
        assert gpucast.dequantize(q, out=y) is y
        assert np.array_equal(download(y), wanted.dequantize())


@pytest.mark.parametrize("layout", ["linear", "128x4"])
def test_layouts(layout: Any) -> None:
    out = gpucast.quantize(X, "nvfp4", scale_layout=layout)
    assert gpucast.quantize(X * 3, "nvfp4", scale_layout=layout, out=out) is out
    assert bytes_of(out) == bytes_of(gpucast.quantize(X * 3, "nvfp4", scale_layout=layout))
    y = np.empty(X.shape, np.float16)
    assert np.array_equal(gpucast.dequantize(out, "FLOAT16", out=y), out.dequantize("FLOAT16"))


def test_what_is_refused() -> None:
    q = gpucast.quantize(X, "int8_64")
    before = bytes_of(q)
    readonly = gpucast.quantize(X, "int8_64")
    readonly.scales.flags.writeable = False
    inside = Quantized(X.view(np.int8).reshape(-1)[: X.size].reshape(X.shape), np.ones((6, 4), np.float32), "int8_64")
    for out, error, match in (
        (X, TypeError, "out is ndarray; expected a Quantized"),
        ((q, q), TypeError, "out is a tuple of Quantized, Quantized; expected a Quantized"),
        (gpucast.quantize(X, "mxfp4"), ValueError, "out has format mxfp4; expected int8_64"),
        (gpucast.quantize(X[1:], "int8_64"), ValueError, r"out has shape \(5, 256\); expected \(6, 256\)"),
        (gpucast.quantize(X, "int8_64", axis=0), ValueError, "out has axis 0; expected 1"),
        (gpucast.quantize(X.astype("f8"), "int8_64"), ValueError, "out has dtype DOUBLE; expected FLOAT"),
        (readonly, ValueError, "out.scales is read-only"),
        (inside, ValueError, "out.data shares memory with x"),
    ):
        with pytest.raises(error, match=match):
            gpucast.quantize(X, "int8_64", out=out)
    with pytest.raises(TypeError, match="out is Quantized; expected a tuple of two Quantized"):
        gpucast.quantize(X, "int8_64", transpose="both", out=q)
    square = np.ones((64, 64), np.float32)
    one = gpucast.quantize(square, "int8_64")
    with pytest.raises(ValueError, match="out.data shares memory with out.data"):
        gpucast.quantize(square, "int8_64", transpose="both", out=(one, one))
    for y, error, match in (
        (np.empty(X.shape, np.float16), TypeError, "out has dtype float16; expected float32"),
        (np.empty((6, 255), np.float32), ValueError, r"out has shape \(6, 255\); expected \(6, 256\)"),
        ([], TypeError, "out is list"),
    ):
        with pytest.raises(error, match=match):
            gpucast.dequantize(q, out=y)
    assert bytes_of(q) == before


@pytest.mark.parametrize("name", [*FORMATS, "nvfp4_4over6"])
def test_odd_addresses_in_a_capture(name: str) -> None:
    """The workspace of the first call has the memory that the second one needs."""
    made = gpucast.quantize(X, name)
    with installed(HostDriver()) as driver:
        parts = {}
        for of, part in made.parts().items():
            held = part.data if isinstance(part, gpucast.PackedArray) else part
            there = upload(held, offset=held.itemsize)
            parts[of] = gpucast.PackedArray(there, part.dtype, part.shape) if held is not part else there
        q, x, y = replace(made, **parts), upload(X), upload(np.zeros_like(X), offset=4)
        for capture in (False, True):
            driver.capture, before = capture, len(driver.launched)
            assert gpucast.quantize(x, name, out=q) is q
            assert gpucast.dequantize(q, out=y) is y
            assert len(driver.launched) > before + 1
        driver.capture = False
        assert bytes_of(q.get()) == bytes_of(made)
        assert np.array_equal(download(y), made.dequantize())
