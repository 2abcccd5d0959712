# SPDX-License-Identifier: Apache-2.0
"""Quotients beside the midpoints of two codes, by every way that an architecture's instructions offer.

Numbers whose quotients are on or next to midpoints, and their codes by exact arithmetic. The kernels run as host code
with models of the instructions, or on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpucast.arrays.packed import PackedArray
from gpucast.casting.cast import cast
from gpucast.core.dtypes import DType, dtype
from gpucast.core.formats import Format, Parts
from gpucast.quantization import FORMATS, Quantized, quantize, quantize_on_host
from gpucast.quantization.gpu.source import divide_by
from host_driver import DEVICES, HostDriver, installed, on_gpu
from quantization_cases import same

Array = npt.NDArray[Any]

_BITS = {2: np.uint16, 4: np.uint32}


def divisors(count: int) -> Array:
    """FLOATs with few bits, with 11, 12 and 24 bits, and with reciprocals next to powers of two."""
    rng = np.random.default_rng(11)
    bits = rng.choice([0, 1, 3, 6, 10, 11, 12, 16, 23], count)
    mantissa = rng.integers(0, 1 << 23, count) >> (23 - bits) << (23 - bits)
    mantissa[: count // 8] = rng.choice([0, 1, 2, (1 << 23) - 1, (1 << 23) - 2], count // 8)
    exponent = rng.integers(127 - 12, 127 + 12, count)
    exponent[-4:] = 67, 68, 186, 187  # The limits of the quick methods.
    return (mantissa | exponent << 23).astype(np.uint32).view(np.float32)


def factors(to: DType, count: int) -> Array:
    """FLOATs whose products with some small odd number are so close to a midpoint of the type that FLOAT gives it."""
    rng = np.random.default_rng(13)
    odd = rng.choice([3, 5, 7, 9, 11, 13, 15, 21, 27, 45, 63, 101, 125], count)
    middle = 2.0 * rng.integers(1 << to.mantissa_bits, 2 << to.mantissa_bits, count) + 1
    return (middle / odd * 2.0 ** rng.integers(-12, 2, count)).astype(np.float32)


def values(element: DType) -> Array:
    """What the magnitudes of a float's codes, or all of an integer's, are, in their order."""
    if element.family == "int":
        return np.arange(int(element.min), int(element.max) + 1, dtype=np.float64)
    return np.array([float(element.value(code)) for code in range(element.max_code + 1)])


def midpoints(element: DType) -> Array:
    found = values(element)
    return (found[1:] + found[:-1]) / 2


def neighbours(x: Array, source: DType, steps: int = 3) -> Array:
    """The numbers of the type nearest to x, and those up to `steps` ULPs away, with both signs; zeros too."""
    near = np.minimum(np.abs(x), float(source.max)).astype(np.float32).astype(source.numpy)
    codes = near.view(_BITS[near.itemsize]).astype(np.int64)
    nearby = np.clip(codes[..., None] + np.arange(-steps, steps + 1), 0, source.max_code).astype(_BITS[near.itemsize])
    flat = nearby.reshape(*x.shape[:-1], -1).view(source.numpy)
    return np.concatenate([flat, -flat], axis=-1)


def rows(format: Format, source: DType, d: Array, length: int) -> Array:
    """For each divisor a row of whole vectors: its midpoints and their neighbours, then random numbers."""
    middle = midpoints(format.element)
    middle = middle[middle > 0] if format.element.family == "int" else middle
    near = neighbours(d[:, None].astype(np.float64) * middle, source)
    rng = np.random.default_rng(12)
    others = rng.standard_normal((d.size, -near.shape[1] % length + length)) * d[:, None] * format.divisor / 3
    others = np.clip(others, float(source.min), float(source.max))
    return np.concatenate([near, others.astype(np.float32).astype(source.numpy)], axis=1)


def codes(format: Format, x: Array, d: Array, zero_point: int = 0) -> Array:
    """The codes of x / d, one divisor of 28 bits or fewer for each row, by comparing x with midpoints times d: exact in
    DOUBLE."""
    element = format.element
    found = np.empty(x.shape, np.uint8)
    wide = x.astype(np.float64)
    for row, by in enumerate(np.asarray(d, np.float64)):
        if element.family == "int":
            lowest = int(element.min) - zero_point
            bounds = (np.arange(lowest, int(element.max) - zero_point) + 0.5) * by
            below, above = (np.searchsorted(bounds, wide[row], side) + lowest for side in ("left", "right"))
            # On a midpoint: the even integer of both.
            whole = np.where(below % 2 == 0, below, above)
            found[row] = (whole + zero_point) & (2**element.bits - 1)
        else:
            bounds, magnitude = midpoints(element) * by, np.abs(wide[row])
            below, above = (np.searchsorted(bounds, magnitude, side) for side in ("left", "right"))
            sign = np.where(np.signbit(wide[row]), element.sign_code, 0)
            found[row] = np.where(below % 2 == 0, below, above) | sign
    return found


def every_number(source: DType) -> Array:
    """All finite numbers of a type of 16 bits."""
    every = np.arange(1 << 16, dtype=np.uint16)
    return every[every & (source.sign_code - 1) <= source.max_code].view(source.numpy)


def check_rows(name: str, source: str, count: int) -> None:
    """A per-axis format on the device, each row with a given scale: numbers near midpoints, or all of 16 bits; and
    back."""
    format, row, d = FORMATS[name], dtype(source), divisors(count)
    matrices = [(rows(format, row, d, 16), d)]
    if row.bits == 16:
        some = d[:: -(-count // 16)]
        matrices.append((np.tile(every_number(row), (some.size, 1)), some))
    for x, by in matrices:
        q = quantize(x, name, axis=0, scale=by, device="cuda")
        differ = _data(q).view(np.uint8) != codes(format, x, by)
        assert not differ.any(), (name, source, np.argwhere(differ)[0])
    scales = np.concatenate([factors(row, count), d])
    data = np.resize(np.arange(1 << format.element.bits, dtype=np.uint8), (scales.size, 256)).view(format.element.numpy)
    parts = Parts(data, scales)
    there = (cast(part, part_row, device="cuda") for part, part_row in ((data, format.element), (scales, "FLOAT")))
    on_device = Quantized(*there, format, axis=0)
    assert same(
        cast(on_device.dequantize(row), row, device="cpu"), quantize_on_host.dequantize(parts, format, row, axis=0)
    )


def check_blocks(source: str, count: int) -> None:
    """NVFP4 on the device with given global scales: block scales near midpoints, then elements near midpoints."""
    format, row, of_scale = FORMATS["nvfp4"], dtype(source), FORMATS["float8e4m3fn_1x128"]
    for g in divisors(count)[:-4]:
        # The first number of a block sets its scale.
        first = rows(of_scale, row, np.array([6.0]) * g, 16)[0]
        x = np.zeros((first.size, 16), row.numpy)
        x[:, 0] = first
        q = quantize(x, "nvfp4", scale=g, device="cuda").get()
        wanted = np.maximum(codes(of_scale, first[None], np.array([6.0]) * g)[0] & 0x7F, 1)
        assert np.array_equal(q.scales.view(np.uint8)[:, 0], wanted), (source, g)
        scales = np.arange(8, 127, 5, dtype=np.uint8).view(format.scale.numpy)
        d = scales.astype(np.float64) * np.float64(g)
        near = rows(format, row, d, 15)
        near = near[:, : near.shape[1] // 15 * 15].reshape(d.size, -1, 15)
        top = np.broadcast_to((6 * d).astype(np.float32).astype(row.numpy)[:, None, None], (*near.shape[:2], 1))
        near = np.where(np.abs(near) <= top, near, np.zeros_like(near))
        x = np.concatenate([top, near], axis=2).reshape(d.size, -1)
        q = quantize(x, "nvfp4", scale=g, device="cuda")
        assert (q.get().scales.view(np.uint8) == scales.view(np.uint8)[:, None]).all()
        assert np.array_equal(_data(q).view(np.uint8), codes(format, x, d)), (source, g)


def _data(q: Quantized) -> Array:
    data = q.get().data
    return data.get() if isinstance(data, PackedArray) else data


# ---- the tests ----

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
            check_rows(name, source, count)
    for source in ("FLOAT", "BFLOAT16"):
        check_blocks(source, blocks)


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
    format, d = FORMATS["float8e4m3fn_1x128"], divisors(64)
    x = rows(format, dtype("FLOAT"), d, VECTOR).astype(np.float64)
    middle = midpoints(format.element)
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
