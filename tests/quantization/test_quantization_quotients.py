# SPDX-License-Identifier: Apache-2.0
"""Quotients beside the midpoints of two codes, by every way that an architecture's instructions offer.

Numbers whose quotients are on or next to midpoints. The kernels run as host code with models of the instructions, or
on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpucast.casting.cast import cast
from gpucast.core.dtypes import DType, dtype
from gpucast.quantization import FORMATS, Quantized, exact_quantize, quantize, quantize_on_host
from gpucast.quantization.cuda.source import divide_by
from gpucast.quantization.formats import Format, Parts
from host_driver import DEVICES, HostDriver, installed, on_gpu
from quantization_cases import compare, same

NDArray = npt.NDArray[Any]

_BITS = {2: np.uint16, 4: np.uint32}


def divisors(count: int) -> NDArray:
    """FLOATs with few bits, with 11, 12 and 24 bits, and with reciprocals next to powers of two."""
    rng = np.random.default_rng(11)
    bits = rng.choice([0, 1, 3, 6, 10, 11, 12, 16, 23], count)
    mantissa = rng.integers(0, 1 << 23, count) >> (23 - bits) << (23 - bits)
    mantissa[: count // 8] = rng.choice([0, 1, 2, (1 << 23) - 1, (1 << 23) - 2], count // 8)
    exponent = rng.integers(127 - 12, 127 + 12, count)
    exponent[-4:] = 67, 68, 186, 187  # The limits of the quick methods.
    return (mantissa | exponent << 23).astype(np.uint32).view(np.float32)


def factors(to: DType, count: int) -> NDArray:
    """FLOATs whose products with some small odd number are so close to a midpoint of the type that FLOAT gives it."""
    rng = np.random.default_rng(13)
    odd = rng.choice([3, 5, 7, 9, 11, 13, 15, 21, 27, 45, 63, 101, 125], count)
    middle = 2.0 * rng.integers(1 << to.mantissa_bits, 2 << to.mantissa_bits, count) + 1
    return (middle / odd * 2.0 ** rng.integers(-12, 2, count)).astype(np.float32)


def values(element: DType) -> NDArray:
    """What the magnitudes of a float's codes, or all of an integer's, are, in their order."""
    if element.family == "int":
        return np.arange(int(element.min), int(element.max) + 1, dtype=np.float64)
    return np.array([float(element.value(code)) for code in range(element.max_code + 1)])


def midpoints(element: DType) -> NDArray:
    found = values(element)
    return (found[1:] + found[:-1]) / 2


def neighbours(x: NDArray, source: DType, steps: int = 3) -> NDArray:
    """The numbers of the type nearest to x, and those up to `steps` ULPs away, with both signs; zeros too."""
    near = np.minimum(np.abs(x), float(source.max)).astype(np.float32).astype(source.numpy)
    codes = near.view(_BITS[near.itemsize]).astype(np.int64)
    nearby = np.clip(codes[..., None] + np.arange(-steps, steps + 1), 0, source.max_code).astype(_BITS[near.itemsize])
    flat = nearby.reshape(*x.shape[:-1], -1).view(source.numpy)
    return np.concatenate([flat, -flat], axis=-1)


def rows(format: Format, source: DType, d: NDArray, length: int) -> NDArray:
    """For each divisor a row of whole vectors: its midpoints and their neighbours, then random numbers."""
    middle = midpoints(format.element)
    middle = middle[middle > 0] if format.element.family == "int" else middle
    near = neighbours(d[:, None].astype(np.float64) * middle, source)
    rng = np.random.default_rng(12)
    others = rng.standard_normal((d.size, -near.shape[1] % length + length)) * d[:, None] * format.divisor / 3
    others = np.clip(others, float(source.min), float(source.max))
    return np.concatenate([near, others.astype(np.float32).astype(source.numpy)], axis=1)


def every_number(source: DType) -> NDArray:
    """All finite numbers of a type of 16 bits."""
    every = np.arange(1 << 16, dtype=np.uint16)
    return every[every & (source.sign_code - 1) <= source.max_code].view(source.numpy)


def check(x: NDArray, name: str, scale: Any, axis: int) -> None:
    """A matrix that is quantized on the device with given scales."""
    expected = exact_quantize.quantize(x, FORMATS[name], axis=axis, scale=scale)
    compare(quantize(x, name, axis=axis, scale=scale, device="cuda"), expected, (name, x.dtype, scale))


def check_rows(name: str, source: str, count: int) -> None:
    """A per-axis format, each row with a given scale: numbers near midpoints, or all of 16 bits; and back."""
    format, row, d = FORMATS[name], dtype(source), divisors(count)
    check(rows(format, row, d, 16), name, d, 0)
    if row.bits == 16:
        some = d[:: -(-count // 16)]
        check(np.tile(every_number(row), (some.size, 1)), name, some, 0)
    scales = np.concatenate([factors(row, count), d])
    data = np.resize(np.arange(1 << format.element.bits, dtype=np.uint8), (scales.size, 256)).view(format.element.numpy)
    there = (cast(part, part_row, device="cuda") for part, part_row in ((data, format.element), (scales, "FLOAT")))
    found = cast(Quantized(*there, format, axis=0).dequantize(row), row, device="cpu")
    assert same(found, exact_quantize.dequantize(Parts(data, scales), format, source, axis=0))


def check_blocks(source: str, count: int) -> None:
    """NVFP4 with given global scales: block scales near midpoints, then elements near midpoints."""
    row, of_scale = dtype(source), FORMATS["float8e4m3fn_1x128"]
    for g in divisors(count)[:-4]:
        # The first number of a block sets its scale.
        first = rows(of_scale, row, np.array([6.0]) * g, 16)[0]
        x = np.zeros((first.size, 16), row.numpy)
        x[:, 0] = first
        check(x, "nvfp4", g, -1)
        scales = np.arange(8, 127, 5, dtype=np.uint8).view(of_scale.element.numpy)
        d = scales.astype(np.float64) * np.float64(g)
        near = rows(FORMATS["nvfp4"], row, d, 15)
        near = near[:, : near.shape[1] // 15 * 15].reshape(d.size, -1, 15)
        top = np.broadcast_to(
            np.minimum(6 * d, float(row.max)).astype(np.float32).astype(row.numpy)[:, None, None], (*near.shape[:2], 1)
        )
        near = np.where(np.abs(near) <= top, near, np.zeros_like(near))
        check(np.concatenate([top, near], axis=2).reshape(d.size, -1), "nvfp4", g, -1)


def check_squares(source: str, count: int) -> None:
    """NVFP4 both ways with given global scales, at which multiples of a midpoint are some ULPs beside numbers of the
    source: one product with the reciprocal is enough where it is 6 ULPs or more."""
    row, element = dtype(source), FORMATS["nvfp4"].element
    rng = np.random.default_rng(14)
    turned = (np.arange(16)[:, None] + np.arange(16)) % 16
    scales = np.arange(8, 127, dtype=np.uint8).view(dtype("FLOAT8E4M3FN").numpy).astype(np.float64)
    for _ in range(count):
        block = []
        for s, m in zip(rng.choice(scales, 32), rng.choice(midpoints(element), 32), strict=True):
            digits = row.mantissa_bits
            number = rng.integers(1 << digits, 2 << digits) * 2.0 ** rng.integers(-9, -3)
            g = (np.float32(number / (m * s)).view(np.uint32) + rng.integers(-9, 10)).astype(np.uint32).view(np.float32)
            near = neighbours(s * np.float64(g) * midpoints(element), row, 1)
            top = np.float32(6 * s * g).astype(row.numpy)
            near = np.where(np.abs(near) <= np.abs(top), near, np.zeros_like(near))
            # Each row and each column of a square has the same numbers, the largest one among them.
            block.append((np.append(top, rng.permutation(near)[:15])[turned], g))
        for x, g in block:
            wanted = (exact_quantize.quantize(one, FORMATS["nvfp4"], axis=-1, scale=g) for one in (x, x.T))
            for q, parts in zip(quantize(x, "nvfp4", scale=g, transpose="both", device="cuda"), wanted, strict=True):
                compare(q, parts, (source, g))


# ---- the tests ----

#: Below sm_89 no conversion to float8, below sm_100a none to float4.
SOME = {
    80: ("float8e4m3fn_axis",),
    90: ("float8e4m3fn_axis", "int4_axis"),
    100: ("float8e5m2_axis", "int8_axis"),
}
MORE = ("float8e4m3fn_axis", "float8e5m2_axis", "int8_axis", "int4_axis", "int2_axis")


def check_all(names: tuple[str, ...], count: int, blocks: int) -> None:
    for source in ("FLOAT", "BFLOAT16"):
        for name in names:
            check_rows(name, source, count)
        check_blocks(source, blocks)


@pytest.mark.parametrize("arch", SOME)
def test_beside_midpoints(arch: int, exhaustive: bool) -> None:
    with installed(HostDriver(arch=arch)):
        check_all(MORE if exhaustive else SOME[arch], 400 if exhaustive else 64, 64 if exhaustive else 8)


@pytest.mark.parametrize("source", ["BFLOAT16", "FLOAT16"])
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_one_product_where_it_is_enough(arch: int, source: str, exhaustive: bool) -> None:
    with installed(HostDriver(arch=arch)):
        check_squares(source, 60 if exhaustive else 6)
        check_blocks(source, 64 if exhaustive else 8)


@pytest.mark.parametrize("place", DEVICES[1:])
def test_beside_midpoints_on_a_gpu(place: str) -> None:
    with on_gpu():
        check_all(MORE, 400, 60)


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


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("name", ["float8e4m3fn_axis", "float8e5m2_axis", "int8_axis"])
def test_products_near_midpoints_on_the_host(name: str, to: str) -> None:
    """All codes times factors of every size: the host multiplies FLOATs where it may, and DOUBLEs elsewhere."""
    format, row = FORMATS[name], dtype(to)
    scales = np.concatenate([factors(row, 500), divisors(500)])
    sizes = np.repeat(2.0 ** np.array([0, 59, 61, 64, -59, -61, -64]), scales.size)
    scales = np.append(np.tile(scales, 7) * sizes.astype(np.float32), [np.float32(0), np.float32(np.nan)])
    data = np.resize(np.arange(256, dtype=np.uint8), (scales.size, 256)).view(format.element.numpy)
    parts = Parts(data, scales.reshape(-1, 1).astype(np.float32), None, None)
    found = quantize_on_host.dequantize(parts, format, row, axis=0)
    assert same(found, exact_quantize.dequantize(parts, format, row, axis=0))
