# SPDX-License-Identifier: Apache-2.0
"""Repeated calls, which the module makes in one sweep, have the bits of the exact meaning: numbers beside midpoints,
blocks along either axis, and as many blocks as are worked on together, and some more."""

from __future__ import annotations

import numpy as np
import pytest

import gpucast
from gpucast.core.dtypes import dtype
from gpucast.quantization import exact_quantize
from gpucast.quantization.formats import FORMATS
from quantization_cases import beside_midpoints, compare, same


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", FORMATS)
def test_a_repeated_call_has_the_exact_codes(name: str, axis: int) -> None:
    format = FORMATS[name]
    near = np.random.default_rng(4).standard_normal((64, 128)).astype(np.float32)
    if float(format.element.max) > 1:
        # Others have no midpoints below half of the divisor.
        near, _ = beside_midpoints(format, axis)
    for source in ("FLOAT", "BFLOAT16", "FLOAT16"):
        x = gpucast.cast(near, source, overflow="saturate") if source != "FLOAT" else near
        expected = exact_quantize.quantize(x, format, axis=axis)
        first = gpucast.quantize(x, name, axis=axis)
        for q in (first, gpucast.quantize(x, name, axis=axis), gpucast.quantize(x, name, axis=axis, out=first)):
            compare(q, expected, (name, source, axis))
        for to in ("FLOAT", source, "DOUBLE"):
            numbers = exact_quantize.dequantize(expected, format, dtype(to), axis=axis)
            for _ in range(2):
                assert same(numbers, gpucast.dequantize(first, to)), (name, source, to)


@pytest.mark.parametrize(
    "name", ["mxfp8e4m3", "mxfp6e2m3", "mxfp4", "nvfp4", "int4_32", "uint2_zp_64", "float8e5m2_1x128"]
)
@pytest.mark.parametrize("columns", [128, 640, 4096 + 128])
def test_blocks_of_several_sweeps(name: str, columns: int) -> None:
    format = FORMATS[name]
    x = np.random.default_rng(5).standard_normal((9, columns)).astype(np.float32) * np.float32(1e-3)
    x[3, ::7] = 0
    expected = exact_quantize.quantize(x, format)
    for _ in range(2):
        q = gpucast.quantize(x, name)
        compare(q, expected, (name, columns))
    numbers = exact_quantize.dequantize(expected, format, dtype("FLOAT"))
    for _ in range(2):
        assert same(numbers, gpucast.dequantize(q, "FLOAT"))


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_every_number_of_packed_elements(bits: int) -> None:
    kind = {2: "UINT2", 4: "UINT4", 6: "FLOAT6E2M3"}[bits]
    for n in range(1, 70):
        codes = np.random.default_rng(n).integers(0, 1 << bits, n, dtype=np.uint8)
        stream = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits].ravel()
        packed = gpucast.PackedArray.pack(codes.view(dtype(kind).numpy))
        assert packed.data.tobytes() == np.packbits(stream, bitorder="little").tobytes()
        assert packed.unpack().view(np.uint8).tolist() == codes.tolist()
