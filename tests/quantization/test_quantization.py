# SPDX-License-Identifier: Apache-2.0
"""The host path of quantization gives the reference's bits: every format, every edge of a block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpucast.core.dtypes import dtype
from gpucast.core.formats import SOURCES, Format, Parts
from gpucast.core.fused_ops import Random
from gpucast.quantization import quantize_on_host
from gpucast.reference import exact_quantize
from quantization_cases import ALL, LENGTH, Array, beside_midpoints, matrix, rows, same

NAMES = [row.name for row in SOURCES]
#: The first format of each element; a format of each kind of block and arithmetic.
FIRST = {format.element: name for name, format in reversed(ALL.items())}
SHAPED = {(row.block, row.element.family, row.scale, row.zero_points): name for name, row in ALL.items()}


def check(x: Array, format: Format, axis: int, **keywords: Any) -> Parts:
    expected = exact_quantize.quantize(x, format, axis=axis, **keywords)
    with np.errstate(all="raise"):
        found = quantize_on_host.quantize(x, format, axis=axis, **keywords)
    for part in ("scales", "zero_points", "global_scale", "data"):
        one, other = getattr(expected, part), getattr(found, part)
        if not same(one, other):
            where = np.argwhere(np.atleast_1d(one != other))[:1].tolist()
            raise AssertionError(f"{format} {x.dtype} {x.shape} axis={axis}: {part} differs, first at {where}")
    return found


def check_back(parts: Parts, format: Format, axis: int, to: str = "FLOAT") -> None:
    expected = exact_quantize.dequantize(parts, format, to, axis=axis)
    with np.errstate(all="raise"):
        found = quantize_on_host.dequantize(parts, format, dtype(to), axis=axis)
    assert same(expected, found), (format, axis, to)


@pytest.mark.parametrize("name", ALL)
def test_edges_of_blocks(name: str) -> None:
    format = ALL[name]
    # The half types differ from FLOAT in how they become FLOAT.
    for source in NAMES if FIRST[format.element] == name else ("FLOAT", "DOUBLE"):
        x = matrix(format, source)
        check_back(check(x, format, 1), format, 1, source)
    x = matrix(format, "FLOAT")
    check_back(check(x.T, format, 0), format, 0)
    if format.min_ndim < 2:
        check_back(check(np.stack([x, x[::-1]]), format, 1), format, 1, "BFLOAT16")
    if isinstance(format.block, str):
        for row in rows(format, dtype("FLOAT")).values():
            check_back(check(row if format.block == "tensor" else row.reshape(19, 7), format, 0), format, 0)


@pytest.mark.parametrize("name", SHAPED.values())
def test_sizes(name: str) -> None:
    """Odd sizes, single elements, empty arrays, every axis, strides and byte order."""
    format = ALL[name]
    rng = np.random.default_rng(1)
    for shape in ((1, 1), (0, 4), (4, 0), (3, 1), (1, 33), (17, 2), (2, 3, 5)):
        x = rng.standard_normal(shape).astype(np.float32)
        for axis in range(x.ndim - 2 if format.min_ndim == 2 else 0, x.ndim):
            check_back(check(x, format, axis), format, axis, "DOUBLE")
    x = rng.standard_normal((6, 70)).astype(">f8")[::-2, ::2]
    check(x, format, 1)
    if format.block == "tensor":
        check_back(check(np.array(1.25, np.float16), format, 0), format, 0)


@pytest.mark.parametrize("name", ["float8e4m3fn_128x128", "float8e5m2_1x128", "mxfp4", "nvfp4", "int4_zp_128"])
def test_blocks_longer_than_a_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls for a few elements cut blocks, along rows and across them."""
    from gpucast.host import block_loops

    format = ALL[name]
    x = np.random.default_rng(2).standard_normal((131, 150)).astype(np.float32)
    x[7, 9], x[130, 149] = np.nan, np.inf
    expected = [quantize_on_host.quantize(x, format, axis=axis) for axis in (0, 1)]
    check(x, format, 1)
    monkeypatch.setattr(block_loops, "_PIECE", 50)
    for axis in (0, 1):
        found = quantize_on_host.quantize(x, format, axis=axis)
        for part in ("data", "scales", "zero_points", "global_scale"):
            assert same(getattr(found, part), getattr(expected[axis], part))


@pytest.mark.parametrize("name", ["nvfp4", "float8e4m3fn_1x128", "float8e5m2_axis", "int8_32", "uint4_zp_32"])
def test_beside_every_midpoint(name: str) -> None:
    """Where division as FLOAT gives the wrong side: the floats around all midpoints times the scale of their block."""
    x, scales = beside_midpoints(ALL[name], 0)
    assert same(check(x, ALL[name], 0).scales, scales)


def test_both_roundings_of_a_quotient_count() -> None:
    """The scale times the global scale is no FLOAT: rounded to one, then divided by, it passes the midpoint 1.75."""
    g, s = np.float32(1.4735876321792603), 1.375
    x = np.array([6 * s * float(g)] + [3.5458202] * 15).astype(np.float32)
    d = np.float32(s * float(g))
    assert x[1] / d > 1.75 and float(x[1]) < 1.75 * s * float(g)
    parts = check(x, ALL["nvfp4"], 0, scale=g)
    assert parts.scales.astype(np.float32).tolist() == [s]
    assert parts.data.astype(np.float32).tolist() == [6.0] + [1.5] * 15


def test_products_of_scales_below_the_normal_floats() -> None:
    """As FLOAT they would have lost bits; the numbers are the midpoints as near as FLOAT's subnormals come to them."""
    g = np.float32(1.7 * 2.0**-126)
    x = np.zeros((33, 16))
    x[0] = 6 * 448 * float(g)
    for i in range(1, 33):
        x[i] = np.resize([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], 16) * (i * 2.0**-9 * float(g))
    for given in (None, g):
        check(x.astype(np.float32), ALL["nvfp4"], 1, scale=given)


@pytest.mark.parametrize("name", [name for name, format in ALL.items() if format.element.is_float])
def test_stochastic(name: str) -> None:
    format = ALL[name]
    for source in ("FLOAT", "DOUBLE"):
        x = matrix(format, source)[:, :70]
        for axis in (0, 1):
            seed, offset = 2**63 + axis, 2**64 - 3
            expected = exact_quantize.quantize(x, format, axis=axis, rounding="stochastic", seed=seed, offset=offset)
            found = quantize_on_host.quantize(x, format, axis=axis, random=Random(seed, offset))
            assert same(expected.data, found.data)
            assert same(expected.scales, found.scales)


@pytest.mark.parametrize("name", ["float8e4m3fn_tensor", "float8e5m2_axis", "float8e4m3fn_1x128", "nvfp4", "int8_32"])
def test_given_scales(name: str) -> None:
    format = ALL[name]
    x = matrix(format, "FLOAT")
    shape = () if format.global_scale else format.scales_shape(x.shape, 1)
    for scale in (np.float32(0.01), np.float32(2.0**-140), np.random.default_rng(0).uniform(0.1, 2, shape)):
        parts = check(x, format, 1, scale=np.asarray(scale, np.float32))
        check_back(parts, format, 1)
        if not format.nan_in_scale:
            assert same(parts.scales, np.broadcast_to(np.asarray(scale, np.float32), shape).copy())


@pytest.mark.parametrize("name", ["mxfp8e5m2", "nvfp4", "float8e4m3fn_axis", "int8_zp_64"])
def test_any_codes_and_scales_come_back(name: str) -> None:
    """Dequantizing parts that no quantizing gave: NaN and infinite scales, NaN elements with signs."""
    format = ALL[name]
    rng = np.random.default_rng(3)
    shape = (4, LENGTH)
    codes = rng.integers(0, format.element.code_mask, shape, endpoint=True).astype(np.uint8)
    grid = format.scales_shape(shape, 1)
    scales = rng.integers(0, 2**format.scale.bits - 1, grid, endpoint=True).astype(format.scale.code_numpy)
    zero = None
    if format.zero_point is not None:
        zero = rng.integers(0, 255, grid, endpoint=True).astype(np.uint8).view(format.zero_point.numpy)
    g = np.asarray(2.5, np.float32) if format.global_scale else None
    parts = Parts(codes.view(format.element.numpy), scales.view(format.scale.numpy), zero, g)
    for to in NAMES:
        check_back(parts, format, 1, to)


@pytest.mark.parametrize("name", ["nvfp4", "float8e4m3fn_axis", "float8e5m2_axis", "int8_zp_64"])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, -np.nan, -2.0, 0.0])
def test_scales_that_quantizing_never_gives(name: str, scale: float) -> None:
    """Parts from elsewhere: the NaN that comes of them has no processor's sign."""
    format = ALL[name]
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256) & format.element.code_mask
    parts = quantize_on_host.quantize(np.ones((1, 256), np.float32), format, axis=1)
    if format.global_scale:
        parts = replace(parts, global_scale=np.asarray(scale, np.float32))
    else:
        parts = replace(parts, scales=np.full_like(parts.scales, scale))
    parts = replace(parts, data=codes.view(format.element.numpy))
    for to in NAMES:
        check_back(parts, format, 1, to)
    if np.isinf(scale) and format.element.is_float:
        zeros = quantize_on_host.dequantize(parts, format, dtype("FLOAT"), axis=1).reshape(-1)[
            [0, format.element.sign_code]
        ]
        assert (zeros.view(np.uint32) == 0x7FC00000).all()
