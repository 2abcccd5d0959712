# SPDX-License-Identifier: Apache-2.0
"""The formulas that `bench.host.quantize` compares with are those of the formats."""

from __future__ import annotations

import numpy as np
import pytest

from bench.host import quantize as bench
from gpucast import cast, dtype
from gpucast.quantization import FORMATS, quantize_on_host
from quantization_cases import NDArray


@pytest.mark.parametrize("name", FORMATS)
def test_the_formulas_are_those_of_the_formats(name: str) -> None:
    format = FORMATS[name]
    x: NDArray = np.random.default_rng(5).standard_normal((128, 256)).astype(np.float32)
    for kind in bench.TYPES:
        given = cast(x, kind)
        parts = quantize_on_host.quantize(given, format)
        codes, scale, zero = bench.quantize_formula(given, format)
        assert codes.dtype == parts.data.dtype
        # A quotient rounded to FLOAT may be a midpoint, and so may many of numbers of few bits.
        differ = codes.reshape(x.shape).astype(np.float32) != parts.data.astype(np.float32)
        assert np.count_nonzero(differ) <= x.size // 100
        scales = (cast(s.reshape(parts.scales.shape), "FLOAT") for s in (scale, parts.scales))
        assert np.isclose(*scales).mean() > 0.99
        assert (zero is None) == (parts.zero_points is None)
        assert zero is None or np.mean(zero.reshape(parts.scales.shape) == parts.zero_points) > 0.98
        one, other = (f(parts, format, dtype(kind)) for f in (bench.dequantize_formula, quantize_on_host.dequantize))
        assert one.dtype == other.dtype and np.allclose(one.astype(float), other.astype(float), rtol=2.0**-7)
