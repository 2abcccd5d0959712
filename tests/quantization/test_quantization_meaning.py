# SPDX-License-Identifier: Apache-2.0
"""What quantizing means, held against exact arithmetic and against what others have published."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gpucast.core.dtypes import dtype
from gpucast.quantization import quantize_on_host
from gpucast.quantization.formats import FORMATS, Format
from quantization_cases import matrix, same

FLOAT = dtype("FLOAT")


def nearest(value: Fraction, codes: list[tuple[Fraction, int]]) -> int:
    """The code whose number is nearest, of two the even one; numbers beyond the last give the last."""
    return min(codes, key=lambda found: (abs(found[0] - value), found[1] & 1))[1]


def of_type(name: str, negative: bool = True) -> list[tuple[Fraction, int]]:
    row = dtype(name)
    values = [(code, row.value(code)) for code in range(row.code_mask + 1)]
    finite = [(Fraction(value), code) for code, value in values if np.isfinite(value)]
    # One zero is enough: the sign is not looked at.
    return [found for found in finite if (found[0] or found[1] == 0) and (negative or found[0] >= 0)]


@pytest.mark.parametrize(
    "name", ["float8e4m3fn_1x128", "float8e5m2_1x128", "nvfp4", "mxfp6e2m3", "int8_128", "int2_32"]
)
def test_rounds_the_exact_quotient_once(name: str) -> None:
    """Elements and narrow scales are the nearest to the true quotients, as rational numbers."""
    format = FORMATS[name]
    x = matrix(format, "FLOAT")
    x = x[np.isfinite(x).all(axis=1)]
    parts = quantize_on_host.quantize(x, format)
    codes = of_type(format.element.name)
    length = format.block[-1]
    assert isinstance(length, int)
    g = Fraction(1) if parts.global_scale is None else Fraction(float(parts.global_scale))
    data = parts.data.view(format.element.code_numpy)
    rng = np.random.default_rng(5)
    for i, j in zip(rng.integers(0, x.shape[0], 200), rng.integers(0, x.shape[1], 200), strict=True):
        s = Fraction(float(parts.scales[i, j // length]))
        code = nearest(Fraction(float(x[i, j])) / (s * g), codes)
        value, expected = (float(format.element.value(int(found))) for found in (data[i, j] & 0xFF, code))
        assert value == expected, (i, j, x[i, j], float(s))


def test_nvfp4_scales_are_rounded_once() -> None:
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    format = FORMATS["nvfp4"]
    parts = quantize_on_host.quantize(x, format)
    g = Fraction(float(parts.global_scale))
    top = Fraction(float(np.abs(x).max())) / 2688
    assert abs(g - top) <= top / 2**24
    amax = np.abs(x).reshape(40, 4, 16).max(axis=2)
    codes = of_type("FLOAT8E4M3FN", negative=False)
    for found, largest in zip(parts.scales.view(np.uint8).ravel(), amax.ravel(), strict=True):
        assert found == nearest(Fraction(float(largest)) / 6 / g, codes)


# ---- published numbers ----


#: OCP MX v1.0, table 1 and section 5: block, exponent of the largest power of two, largest number of each element type.
OCP = {
    "mxfp8e5m2": (15, 57344.0),
    "mxfp8e4m3": (8, 448.0),
    "mxfp6e3m2": (4, 28.0),
    "mxfp6e2m3": (2, 7.5),
    "mxfp4": (2, 6.0),
}


@pytest.mark.parametrize("name", OCP)
def test_ocp_mx(name: str) -> None:
    emax, largest = OCP[name]
    format = FORMATS[name]
    assert format.block == (32,) and format.scale.name == "FLOAT8E8M0"
    assert (format.divisor, format.element.max) == (2.0**emax, largest)
    # Section 6.3: the largest power of two not above the largest magnitude, over that of the element; numbers that are
    # then beyond the largest element are clamped to it, with their sign.
    for amax, exponent in ((1.0, 0), (1.999, 0), (2.0, 1), (0.75, -1), (largest, emax)):
        x = np.array([-amax] + [0.0] * 31, np.float32)
        parts = quantize_on_host.quantize(x, format)
        assert float(parts.scales[0]) == 2.0 ** (exponent - emax)
        if amax != 1.999:
            assert float(parts.data[0]) * float(parts.scales[0]) == -amax
        assert abs(float(parts.data[0])) <= largest
    # Section 5.4.1: E8M0 has bias 127, exponents -127 to 127, no zero, NaN 0xff.
    assert quantize_on_host.quantize(np.zeros(32, np.float32), format).scales.view(np.uint8)[0] == 0
    assert quantize_on_host.quantize(np.full(32, np.nan, np.float32), format).scales.view(np.uint8)[0] == 0xFF
    # Section 5.1: a block whose scale is NaN is NaN.
    parts = quantize_on_host.quantize(np.array([np.nan] + [1.0] * 31, np.float32), format)
    assert np.isnan(quantize_on_host.dequantize(parts, format, FLOAT)).all()


# ---- ONNX ----


def onnx_model(operator: str, types: list[int], out: int, opset: int, **attributes: Any) -> Any:
    from onnx import helper

    names = ["x", "scale", "zero"][: len(types)]
    values = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, types, strict=True)]
    node = helper.make_node(operator, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", out, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def block_attributes(format: Format) -> dict[str, int]:
    attributes = {"axis": 1}
    if not isinstance(format.block, str):
        attributes["block_size"] = format.block[-1]
    return attributes


ONNX = [
    name
    for name, format in FORMATS.items()
    if format.scale is FLOAT and format.min_ndim < 2 and format.element.bits > 2
]


@pytest.mark.parametrize("name", ONNX)
def test_onnx_reference_evaluator(name: str) -> None:
    """QuantizeLinear with our scales and zero points gives our codes; DequantizeLinear gives the numbers back."""
    from onnx.reference import ReferenceEvaluator

    format = FORMATS[name]
    x = np.random.default_rng(11).standard_normal((6, 256)).astype(np.float32)
    x[0, :3] = 0, -0.0, 1e-30
    parts = quantize_on_host.quantize(x, format, axis=1)
    zero = np.zeros(parts.scales.shape) if parts.zero_points is None else parts.zero_points
    zero = zero.astype(format.element.numpy)
    number = format.element.number
    assert number is not None
    attributes = block_attributes(format)
    model = onnx_model("QuantizeLinear", [1, 1, number], number, 21, **attributes)
    (codes,) = ReferenceEvaluator(model).run(None, {"x": x, "scale": parts.scales, "zero": zero})
    assert same(np.asarray(codes).view(np.uint8), parts.data.view(np.uint8))
    model = onnx_model("DequantizeLinear", [number, 1, number], 1, 21, **attributes)
    (back,) = ReferenceEvaluator(model).run(None, {"x": parts.data, "scale": parts.scales, "zero": zero})
    assert same(np.asarray(back), quantize_on_host.dequantize(parts, format, FLOAT, axis=1))


#: The node examples of DynamicQuantizeLinear in ONNX: numbers, scale, zero point, codes.
DYNAMIC = [
    ([0, 2, -3, -2.5, 1.34, 0.5], 0.0196078438, 153, [153, 255, 0, 26, 221, 179]),
    ([-1.0, -2.1, -1.3, -2.5, -3.34, -4.0], 0.0156862754, 255, [191, 121, 172, 96, 42, 0]),
    ([1, 2.1, 1.3, 2.5, 3.34, 4, 1.5, 2.6, 3.9, 4, 3, 2.345], 0.0156862754, 0,
     [64, 134, 83, 159, 213, 255, 96, 166, 249, 255, 191, 149]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(DYNAMIC)))
def test_dynamic_quantize_linear(case: int) -> None:
    """uint8_zp_tensor is DynamicQuantizeLinear, except that it rounds the true quotient: ONNX divides as FLOAT, which
    makes 25.5 of 0.5 / 0.0196078438 = 25.49999992, and then 26."""
    numbers, scale, zero, codes = DYNAMIC[case]
    parts = quantize_on_host.quantize(np.array(numbers, np.float32), FORMATS["uint8_zp_tensor"])
    assert parts.scales == np.float32(scale) and parts.zero_points == zero
    differ = [
        (x, ours, onnx) for x, ours, onnx in zip(numbers, parts.data.tolist(), codes, strict=True) if ours != onnx
    ]
    assert differ == ([(0.5, 178, 179)] if case == 0 else [])


# ---- properties ----


@pytest.mark.parametrize("name", FORMATS)
def test_errors_are_bounded(name: str) -> None:
    """Half a step of the element at the number; where it clamps, the distance to the largest element."""
    format = FORMATS[name]
    element = format.element
    x = np.random.default_rng(21).standard_normal((37, 130)).astype(np.float32)
    parts = quantize_on_host.quantize(x, format)
    error = np.abs(quantize_on_host.dequantize(parts, format, dtype("DOUBLE")) - x)
    rows, cols = (
        index // length for index, length in zip(np.indices(x.shape), format.lengths(x.shape, 1), strict=True)
    )
    s = parts.scales.astype(np.float64).reshape(format.grid(x.shape, 1))[rows, cols]
    if parts.global_scale is not None:
        s = s * float(parts.global_scale)
    if element.family == "int":
        # The end of the range may lie half a step off: that of the rounded zero point, and that of the rounded scale.
        bound = s * (1 if format.zero_points else 0.5)
    else:
        exponent = np.maximum(np.frexp(np.abs(x) / s)[1] - 1, 1 - element.bias)
        bound = np.maximum(s * 2.0 ** (exponent - element.mantissa_bits) / 2, np.abs(x) - float(element.max) * s)
    assert (error <= bound * (1 + 1e-6)).all()
    if format.rule == "up":
        assert (np.abs(x) <= float(element.max) * s).all()
