# SPDX-License-Identifier: Apache-2.0
"""Hadamard transforms and the rule "4over6": held against models of their own, on the host and as kernels."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.dtypes import dtype
from gpucast.core.fuse import Random
from gpucast.quantization import exact_hadamard
from gpucast.quantization.formats import LENGTHS, Format, Hadamard, find
from gpucast.reference.exact_cast import random_words
from host_driver import elements
from quantization_cases import same

NVFP4, FOUR = find("nvfp4", "tests"), find("nvfp4_4over6", "tests")
FLOAT, BFLOAT16 = dtype("FLOAT"), dtype("BFLOAT16")
SEED = 7
AT_RANDOM = {"rounding": "stochastic", "seed": 9}


def of_seed(n: int, seed: int = SEED) -> Hadamard:
    return Hadamard(n, exact_hadamard.negative_signs(seed) & (1 << n) - 1)


def signs(how: Hadamard) -> list[int]:
    return [1 - 2 * (how.negative >> i & 1) for i in range(how.length)]


def numbers(rows: int, columns: int = 256, *, special: bool = True) -> np.ndarray:
    rng = np.random.default_rng(rows)
    x = (rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-8, 8, (rows, columns))).astype(np.float32)
    if special:
        x[1, 3], x[2, 20], x[3, :] = np.nan, -np.inf, 3e38
        x[4] *= 1e-38
        x[5], x[6] = 0, -0.0
        x[7, 16:18] = np.inf, -np.inf
    return x


# ---- models ----


def once(exact: np.ndarray) -> np.ndarray:
    """DOUBLE sums and products of two FLOATs, rounded to FLOAT: as if the exact ones were rounded once."""
    with np.errstate(all="ignore"):
        return exact.astype(np.float32).astype(np.float64)


def butterfly(x: np.ndarray) -> np.ndarray:
    """The sums of runs by halves, which is another way to write the stages."""
    if x.shape[-1] == 1:
        return x
    a, b = np.split(x, 2, axis=-1)
    a, b = butterfly(a), butterfly(b)
    with np.errstate(all="ignore"):
        return np.concatenate([once(a + b), once(a - b)], axis=-1)


def transformed(x: np.ndarray, how: Hadamard) -> np.ndarray:
    runs = x.astype(np.float64).reshape(-1, how.length) * signs(how)
    y = once(butterfly(runs) * float(np.float32(1 / np.sqrt(how.length))))
    y[np.isnan(y)] = np.nan
    return y.astype(np.float32).reshape(x.shape)


def nearest(magnitude: np.ndarray, kind: str, unit: Any) -> np.ndarray:
    """The index of the number of a type nearest to magnitude / unit, which are DOUBLE and exact; ties to even."""
    row = dtype(kind)
    values = np.array([float(row.value(code)) for code in range(row.max_code + 1)])
    halves = (values[:-1] + values[1:]) / 2
    limits = halves * np.asarray(unit)[..., None]
    above = (magnitude[..., None] > limits).sum(axis=-1)
    tied = (magnitude[..., None] == limits).any(axis=-1)
    return above + (tied & (above % 2 == 1)), values


def four_over_six(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, codes of scales and the global scale of finite FLOATs."""
    x = x.astype(np.float64)
    g = max(float(once(np.abs(x).max() / (6 * 256))), 2.0**-126)
    blocks = x.reshape(-1, 16)
    tried = []
    for top in (6, 4):
        codes, values = nearest(np.abs(blocks).max(axis=1), "FLOAT8E4M3FN", top * g)
        codes = np.maximum(codes, 1)
        s = values[codes]
        elements, steps = nearest(np.abs(blocks), "FLOAT4E2M1", (s * g)[:, None])
        y = once(blocks * float(once(np.asarray(1 / g))))
        rest = once(y - np.sign(blocks) * steps[elements] * s[:, None])
        error = np.zeros(len(blocks))
        for i in range(16):
            error = once(error + once(rest[:, i] ** 2))
        tried.append((error, codes, elements | np.signbit(blocks) * 8))
    (six, *by_six), (four, *by_four) = tried
    takes = four < six
    scales = np.where(takes, by_four[0], by_six[0]).astype(np.uint8)
    data = np.where(takes[:, None], by_four[1], by_six[1]).astype(np.uint8)
    return data.reshape(x.shape), scales, np.float32(g)


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_are_those_sums(n: int, exhaustive: bool) -> None:
    how, x = of_seed(n), numbers(4096 if exhaustive else 32)
    expected = transformed(x, how)
    assert same(exact_hadamard.transform(x[:64], how), expected[:64])
    assert same(gpucast.hadamard(x, n, seed=SEED), expected)
    assert same(gpucast.hadamard(x, n, signs=signs(how)), expected)


def test_sums_are_rounded_one_by_one() -> None:
    """As fractions: the matrix times the numbers is what comes out where nothing has to be rounded."""
    how = of_seed(16)
    x = np.random.default_rng(1).integers(-1000, 1000, 16).astype(np.float32)
    y = gpucast.hadamard(x, 16, seed=SEED)
    for i in range(16):
        row = [sign * (-1) ** (i & j).bit_count() for j, sign in enumerate(signs(how))]
        assert Fraction(float(y[i])) == sum(Fraction(float(a)) * b for a, b in zip(x, row, strict=True)) / 4
    assert same(gpucast.hadamard(y, 16, seed=SEED, inverse=True), x)


def test_the_smaller_error_is_taken(exhaustive: bool) -> None:
    x = numbers(4096 if exhaustive else 64, special=False)
    data, scales, g = four_over_six(x)
    q = gpucast.quantize(x, "nvfp4_4over6")
    assert same(elements(q.data).view(np.uint8), data)
    assert same(q.scales.view(np.uint8).reshape(-1), scales) and q.global_scale == g
    plain = gpucast.quantize(x, "nvfp4").dequantize()
    assert np.square(q.dequantize() - x).mean() < np.square(plain - x).mean()
    # 4 is nearer to what 6 and 3 are the neighbours of; equal errors keep 6.
    block = np.array([[6.0] * 15 + [4.5]], np.float32)
    assert gpucast.quantize(np.concatenate([block, 0 * block]), "nvfp4_4over6", scale=1.0).scales[0, 0] == 1.5
    assert gpucast.quantize(np.full((1, 16), 6.0, np.float32), "nvfp4_4over6", scale=1.0).scales[0, 0] == 1


def test_other_formats_quantize_the_transformed_array() -> None:
    x = numbers(48, 96)
    y = gpucast.hadamard(x, 32, seed=SEED)
    for name in ("mxfp8e4m3", "float8e4m3fn_tensor", "int4_zp_64", "nvfp4_16x16"):
        q, expected = (
            gpucast.quantize(one, name, **more) for one, more in ((x, {"hadamard": 32, "seed": SEED}), (y, {}))
        )
        assert all(same(elements(part), elements(expected.parts()[name])) for name, part in q.parts().items())
    assert same(
        gpucast.hadamard(x, 16, axis=0, to="FLOAT16", out=np.empty(x.shape, np.float16)),
        gpucast.cast(gpucast.hadamard(x, 16, axis=0), "FLOAT16"),
    )


def test_words_of_signs_are_not_those_of_rounding() -> None:
    """Of the generator's own block with the upper counter 1."""
    words = of_seed(128).words
    assert [hex(word) for word in words] == ["0x7ebaed90", "0x2bf6d9af", "0x4fac3b2b", "0x39acec6c"]
    assert not set(words) & set(random_words(Random(SEED, 0), 4096).tolist())


X = np.ones((32, 48), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: gpucast.hadamard(X, 12), ValueError, "length=12 must be one of 16, 32, 64, 128"),
        (lambda: gpucast.hadamard(X, 32), ValueError, "axis 1 of shape (32, 48) is no multiple of 32"),
        (lambda: gpucast.hadamard(X, 16, axis=2), ValueError, "axis=2 is out of bounds"),
        (lambda: gpucast.hadamard(X, 16, signs=[1] * 15), ValueError, "shape (15,); expected 16 numbers"),
        (lambda: gpucast.hadamard(X, 16, signs=[1] * 15 + [0]), ValueError, "signs= must be +1 and -1"),
        (lambda: gpucast.hadamard(X, 16, seed=-1), ValueError, "seed=-1 is out of range"),
        (lambda: gpucast.hadamard(X, 16, signs=[1] * 16, seed=1), ValueError, "signs= and seed=1 both give the signs"),
        (lambda: gpucast.hadamard(X, 16, out=np.empty(3, np.float32)), ValueError, "shape"),
        (lambda: gpucast.hadamard(X.astype(np.int32), 16), TypeError, "INT32 must be one of FLOAT"),
        (lambda: gpucast.quantize(X, "nvfp4", signs=[1] * 16), ValueError, "signs= goes with hadamard="),
        (lambda: gpucast.quantize(X, "nvfp4", hadamard=64), ValueError, "no multiple of 64"),
        (lambda: gpucast.quantize(X, "nvfp4", hadamard=(16, 16)), ValueError, "a pair for transpose='both'"),
        (lambda: gpucast.quantize(X, "int8_axis", hadamard=16), ValueError, "has a scale for each"),
        (lambda: gpucast.quantize(X, "te-nvfp4", hadamard=16), ValueError, "is not for recipes"),
        (lambda: gpucast.quantize(X, "nvfp4", signs=[1] * 16, hadamard=16, seed=1), ValueError, "does not apply"),
        (lambda: gpucast.quantize(X, "nvfp4_4over6", axis=0), ValueError, "needs whole blocks along the last axis"),
        (lambda: gpucast.quantize(X[:, :40], "nvfp4_4over6"), ValueError, "needs whole blocks"),
        (lambda: gpucast.quantize(X, "nvfp4").dequantize(seed=1), ValueError, "seed= goes with hadamard="),
        (lambda: gpucast.quantize_grouped(X, [32], FOUR, scale=1.0), ValueError, "needs more for its codes"),
        (lambda: Format("mine", "FLOAT4E2M1", "FLOAT8E4M3FN", (32,), "4over6"), ValueError, "in blocks of 16"),
    ],
)  # fmt: skip
def test_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
