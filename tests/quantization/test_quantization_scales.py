# SPDX-License-Identifier: Apache-2.0
"""Scales of tiny blocks: every way to them gives what the rule says, where FLOAT's subnormal numbers begin and below.

No way rounds twice there. The host and the reference divide as DOUBLE, which is exact enough for every FLOAT (see the
reference's step 4). Kernels take powers of two from exponents; for a subnormal amax they find a power below the
smallest one, and so does the rule, as all divisors are above 1. Other scales are no smaller than 2^-126, so that a
quotient which matters is a normal FLOAT, with an exact remainder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gpucast import quantize
from gpucast.quantization import Format, quantize_on_host
from gpucast.reference import exact_cast
from host_driver import HostDriver, download, installed, upload
from quantization_cases import ALL, Array

#: A format for every divisor and rule, with blocks of one element: its scale is that of the element.
DIVISORS = {
    (format.divisor, format.scale, format.rule): replace(format, name=f"{name} by itself", block=(1,))
    for name, format in ALL.items()
    if not format.zero_points and not format.global_scale
}
#: The subnormal numbers, and as many binades above as a divisor may bring to them.
SUBNORMAL, END = 1 << 23, 20 << 23
PART = 1 << 20


def codes(format: Format, exhaustive: bool) -> Iterator[Array]:
    """Codes of positive FLOATs: all subnormal ones and the next binade, or some, and what is beside powers of two and
    their products with the divisor."""
    near = np.arange(-3, 4)
    near = [
        np.float32(number * 2.0**power).view(np.uint32).astype(np.int64) + near
        for power in range(-149, -100)
        for number in (1, format.divisor, 1 / format.divisor)
        if number * 2.0**power >= 2.0**-149
    ]
    some = [np.arange(64), np.arange(SUBNORMAL - 64, SUBNORMAL + 64), np.arange(0, END, 16381)]
    yield np.unique(np.concatenate([*near, *some]).clip(0, None)).astype(np.uint32)
    for start in range(0, 2 * SUBNORMAL if exhaustive else 0, PART):
        yield np.arange(start, start + PART, dtype=np.uint32)


def scales(amax: Array, format: Format) -> Array:
    """The rule, as the reference states it."""
    wanted = amax.astype(np.float64) / format.divisor
    mode = {"round_mode": "down" if format.rounds_down else "up"} if format.scale.family == "e8m0" else {}
    found = exact_cast.cast(wanted, format.scale, **mode)
    least = exact_cast.cast(np.array(format.smallest_scale), format.scale)
    return np.maximum(found.view(format.scale.code_numpy), least.view(format.scale.code_numpy))


@pytest.mark.parametrize("format", DIVISORS.values(), ids=str)
def test_host(format: Format, exhaustive: bool) -> None:
    for part in codes(format, exhaustive):
        x = part.view(np.float32)
        found = quantize_on_host.quantize(x, format)
        assert np.array_equal(found.scales.view(format.scale.code_numpy), scales(x, format))


@pytest.mark.parametrize("format", DIVISORS.values(), ids=str)
def test_kernels(format: Format, exhaustive: bool) -> None:
    if not (exhaustive or (format.rule == "up" and format.divisor == 6)):
        pytest.skip("compiles; the formats of test_quantization_device.py have kernels of their own")
    with installed(HostDriver()):
        for part in codes(format, exhaustive):
            x = part.view(np.float32)
            found = download(quantize(upload(x[None]), format, axis=0).scales)
            assert np.array_equal(found.view(format.scale.code_numpy)[0], scales(x, format))


def test_every_divisor_brings_the_subnormal_numbers_below_the_smallest_power() -> None:
    """What the kernels' way by exponents rests on (where the exponent of the divisor is 0 they take another)."""
    powers = [divisor for divisor, scale, _ in DIVISORS if scale.family == "e8m0"]
    assert powers and all(math.frexp(divisor)[1] - 1 >= 1 for divisor in powers)
