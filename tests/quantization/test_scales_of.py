# SPDX-License-Identifier: Apache-2.0
"""`quantize(..., scales_of=q)`: the codes of numbers that were dequantized, on the host and a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import FORMATS, RECIPES, exact_quantize, recipes
from host_driver import HostDriver, installed, upload
from quantization_cases import bytes_of, compare

NAMES = [*FORMATS, *RECIPES, "nvfp4_4over6", "mxfp4_even", "int4_32_no_clipping"]
#: Some of each kind of scale, with zero points, steps, and a global scale.
ON_DEVICE = (
    "nvfp4",
    "nvfp4_ue5m3",
    "mxfp8e4m3_up",
    "int4_zp_32",
    "float8e4m3fn_128x128",
    "te-nvfp4",
    "torchao-int4-32",
)


def numbers(name: str) -> Any:
    rng = np.random.default_rng(len(name))
    x = rng.standard_normal((16, 256)) * 2.0 ** rng.integers(-6, 6, (16, 1))
    x[1] = 0
    return gpucast.cast(x, recipes.RECIPES[name].sources[-1] if name in RECIPES else "FLOAT")


@pytest.mark.parametrize("name", NAMES)
def test_codes_come_back(name: str) -> None:
    q = gpucast.quantize(numbers(name), name)
    for to in ("FLOAT", "BFLOAT16", "FLOAT16"):
        # A distance of 255 steps from the zero point needs more than the 8 bits of a BFLOAT16.
        if to == "BFLOAT16" and "int8_zp" in name:
            continue
        y = q.dequantize(to)
        y = y if name not in RECIPES or to in RECIPES[name].sources else gpucast.cast(y, RECIPES[name].sources[0])
        again = gpucast.quantize(y, name, scales_of=q)
        assert bytes_of(again) == bytes_of(q)
        assert (again.format, again.axis, again.dtype.name) == (q.format, q.axis, gpucast.dtype(y.dtype).name)


def other_numbers(x: Any) -> Any:
    """Numbers for which the scales were not made, some of them none."""
    other = np.roll(x, 100)
    other[3, 40], other[7, 1], other[9, 9] = np.nan, np.inf, -np.inf
    return other


@pytest.mark.parametrize("name", NAMES)
def test_the_host_has_the_references_bits(name: str) -> None:
    x = numbers(name)
    q, other = gpucast.quantize(x, name), other_numbers(x)
    for random in ({}, {"rounding": "stochastic", "seed": 4}) if q.format.element.is_float else ({},):
        wanted = exact_quantize.quantize_by(other, q.format, q.native("test"), **random)
        compare(gpucast.quantize(other, name, scales_of=q, **random), wanted, name)


@pytest.mark.parametrize("name", ON_DEVICE)
def test_devices_have_the_references_bits(name: str) -> None:
    x = numbers(name)
    for axis in (-1, 0) if "128x128" not in name else (-1,):
        known = gpucast.quantize(x, name, axis=axis)
        with installed(HostDriver(devices=1)):
            parts = {part: upload(array) for part, array in known.parts().items() if part != "data"}
            q = replace(known, data=to_device(known.data), **parts)
            for given in (x, other_numbers(x)):
                found = gpucast.quantize(upload(given), name, axis=axis, scales_of=q)
                wanted = exact_quantize.quantize_by(given, known.format, known.native("test"), axis=axis)
                compare(found, wanted, f"{name}, axis {axis}")


def to_device(data: Any) -> Any:
    return gpucast.PackedArray(upload(data.data), data.dtype, data.shape) if hasattr(data, "get") else upload(data)


def test_layouts_and_the_same_scales() -> None:
    x = numbers("nvfp4")
    q = gpucast.quantize(x, "nvfp4", scale_layout="128x4")
    again = gpucast.quantize(2 * x, "nvfp4", scales_of=q, scale_layout="128x4")
    assert again.scale_layout == "128x4" and again.scales.tobytes() == q.scales.tobytes()
    assert gpucast.quantize(x, "nvfp4", scales_of=q).data.get().tobytes() == q.data.get().tobytes()
    # The scales are a copy.
    again.scales.view(np.uint8)[...] = 0
    assert q.scales.view(np.uint8).any()


def test_refusals() -> None:
    x = numbers("nvfp4")
    q = gpucast.quantize(x, "nvfp4")
    with pytest.raises(TypeError, match=r"^quantize: scales_of=ndarray must be a Quantized$"):
        gpucast.quantize(x, "nvfp4", scales_of=x)
    for keywords in ({"scale": 1.0}, {"amax": 1.0}, {"hadamard": 16}, {"out": q}, {"transpose": True}):
        with pytest.raises(ValueError, match=rf"^quantize: {next(iter(keywords))}=.*scales_of= do not go together$"):
            gpucast.quantize(x, "nvfp4", scales_of=q, **keywords)
    for given, format, keywords, wanted in (
        (x[:8], "nvfp4", {}, r"shape \(16, 256\); expected \(8, 256\)"),
        (x, "mxfp4", {}, "format nvfp4; expected mxfp4"),
        (x, "nvfp4", {"axis": 0}, "axis 1; expected 0"),
    ):
        with pytest.raises(ValueError, match=f"^quantize: scales_of has {wanted}"):
            gpucast.quantize(given, format, scales_of=q, **keywords)
