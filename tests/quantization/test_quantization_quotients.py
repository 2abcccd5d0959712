# SPDX-License-Identifier: Apache-2.0
"""Quotients beside the midpoints of two codes, by every way that an architecture's instructions offer.

The kernels run as host code with models of the instructions, or on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest

import quotient_cases as cases
from gpucast.core.dtypes import dtype
from gpucast.quantization import FORMATS
from gpucast.quantization.gpu.source import divide_by
from host_driver import DEVICES, HostDriver, installed, on_gpu

#: Below sm_89 no conversion to float8, below sm_100a none to float4.
SOME = {
    80: ("float8e4m3fn_axis",),
    90: ("float8e4m3fn_axis", "int4_axis"),
    100: ("float8e5m2_axis", "int8_axis"),
}
MORE = ("float8e4m3fn_axis", "float8e5m2_axis", "int8_axis", "int4_axis", "int2_axis")
VECTOR = 16


def check(names: tuple[str, ...], count: int, blocks: int) -> None:
    for name in names:
        for source in ("FLOAT", "BFLOAT16"):
            cases.check_device(name, source, count)
    for source in ("FLOAT", "BFLOAT16"):
        cases.check_device_blocks(source, blocks)


@pytest.mark.parametrize("arch", SOME)
def test_beside_midpoints(arch: int, exhaustive: bool) -> None:
    with installed(HostDriver(arch=arch)):
        check(MORE if exhaustive else SOME[arch], 400 if exhaustive else 64, 64 if exhaustive else 8)


@pytest.mark.parametrize("place", DEVICES[1:])
def test_beside_midpoints_on_a_gpu(place: str) -> None:
    with on_gpu():
        check(MORE, 400, 60)


def test_the_cases_hit_midpoints() -> None:
    """Quotients on a midpoint, and so near that a FLOAT division would land on it."""
    format, d = FORMATS["float8e4m3fn_1x128"], cases.divisors(64)
    x = cases.rows(format, dtype("FLOAT"), d, VECTOR).astype(np.float64)
    middle = cases.midpoints(format.element)
    exact = np.isin(np.abs(x), np.outer(d.astype(np.float64), middle))
    rounded = np.isin(np.abs(x.astype(np.float32) / d[:, None]), middle.astype(np.float32))
    assert exact.sum() > 1000 and (rounded & ~exact).sum() > 100


def test_division_by_multiplication() -> None:
    rng = np.random.default_rng(1)
    near = [2**k + step for k in (1, 3, 16, 31) for step in (-1, 0, 1)]
    for n in (*near, 7, 10, 641, 2**32 - 1, *rng.integers(1, 2**32, 500).tolist()):
        factor, first, second = divide_by(n)
        multiples = [n * k for k in (0, 1, 2, (2**32 - 1) // n)]
        for i in {0, 2**32 - 1, *multiples, *(i - 1 for i in multiples), *rng.integers(0, 2**32, 8).tolist()}:
            if 0 <= i < 2**32:
                part = factor * i >> 32
                part += (i - part) >> first
                assert part < 2**32 and part >> second == i // n, (i, n)
    assert divide_by(0) == divide_by(2**32) == (0, 0, 0)
