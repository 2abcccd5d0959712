# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding: the random words, and what reference, host path and kernels make of them."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import exact
import gpucast
from codes import assert_codes
from functions_on_host import build, items_of, loops, run
from gpucast.core.dtypes import DType, dtype
from gpucast.core.fuse import Random
from gpucast.core.rule import CastRule, has_stochastic
from gpucast.parity.cases import NUMERIC, stochastic_cases
from gpucast.reference import exact_cast
from hard_codes import hard_codes

DESTINATIONS = tuple(row for row in NUMERIC if has_stochastic(row))
SOURCES = (
    "FLOAT DOUBLE FLOAT16 BFLOAT16 FLOAT8E5M2FNUZ FLOAT8E4M3FN FLOAT8E8M0 FLOAT4E2M1 INT4 INT16 INT32 INT64 UINT64 BOOL"
).split()

#: The known answers of the authors' own distribution, Random123 (kat_vectors): counter, key, result.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


# ---- random words ----


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_known_answers_of_the_reference() -> None:
    for counter, key, result in KNOWN:
        blocks = tuple(np.array([word], np.uint64) for word in _words(counter))
        found = exact_cast.philox(blocks, tuple(_words(key)))  # type: ignore[arg-type]
        assert [int(word[0]) for word in found] == _words(result)


STREAMS = [Random(0), Random(0x299F31D0A4093822, 5), Random(2**64 - 1, 2**64 - 2), Random(7, 2**34 - 3)]


@pytest.mark.parametrize("random", STREAMS, ids=str)
def test_words_of_elements(random: Random) -> None:
    """Word (offset + i) % 4 of block (offset + i) // 4, the sum in more than 64 bits: an offset continues a stream."""
    words = exact_cast.random_words(random, 23)
    for i, word in enumerate(words.tolist()):
        block, place = divmod(random.offset + i, 4)
        counter = tuple(np.array([block >> shift & 2**32 - 1], np.uint64) for shift in (0, 32, 64, 96))
        assert word == int(exact_cast.philox(counter, (random.seed & 2**32 - 1, random.seed >> 32))[place][0])
    if random.offset + 9 < 2**64:
        assert np.array_equal(exact_cast.random_words(random._replace(offset=random.offset + 9), 14), words[9:])
    assert exact_cast.random_words(random, 0).shape == (0,)


# ---- the rule ----


def words_for(codes: np.ndarray, rule: CastRule, rng: np.random.Generator) -> np.ndarray:
    """A word for each code: 0, all ones, any, and those where the decision lies, one below and one above."""
    row = rule.dst
    kind = rng.integers(0, 6, codes.size)
    words = rng.integers(0, 2**32, codes.size, dtype=np.uint32)
    words[kind == 0], words[kind == 1] = 0, 2**32 - 1
    for i in np.flatnonzero(kind >= 3).tolist():
        x = exact.decode(rule.src, int(codes[i]))
        if x.kind == "finite" and x.magnitude:
            step = Fraction(2) ** (max(exact.floor_log2(x.magnitude), 1 - row.bias) - row.mantissa_bits)
            words[i] = (-int(x.magnitude % step / step * 2**32) + int(kind[i]) - 4) % 2**32
    return words


def test_every_implementation_is_the_exact_model(tmp_path: Path, exhaustive: bool) -> None:
    sources = NUMERIC if exhaustive else tuple(map(dtype, SOURCES))
    chosen = [case for src in sources for dst in DESTINATIONS for case in stochastic_cases(src, dst)]
    rules = [case.rule for case in chosen]
    library = build(gpucast.device_functions(items_of(chosen)) + loops(rules), tmp_path)
    rng = np.random.default_rng(4)
    for rule in rules:
        codes = hard_codes(rule.src, rule.dst, 10_000 if exhaustive else 250)
        words = words_for(codes, rule, rng)
        wanted = np.array(exact.cast_codes(codes, rule, words), dtype=rule.dst.code_numpy)
        assert_codes(exact_cast.apply(codes.view(rule.src.numpy), rule, words).view(wanted.dtype), wanted, rule, codes)
        assert_codes(run(library, rule, codes, "", words), wanted, f"kernels: {rule}", codes)


#: The words of a stream, and of a block.
STREAM = """
extern "C" void random_words(gpucast::u64 seed, gpucast::u64 offset, gpucast::i64 i, gpucast::u32* words, int n) {
    const gpucast::Random random = {seed, offset};
    gpucast::u32 eight[8];
    for (int j = 0; j + 8 <= n; j += 8) {
        random.words(i + j, eight);
        for (int k = 0; k < 8; ++k) words[j + k] = eight[k];
    }
    for (int j = n & ~7; j < n; ++j) words[j] = random.one(i + j);
}
extern "C" void philox(gpucast::u64 seed, gpucast::u64 low, gpucast::u64 high, gpucast::u32* words) {
    const gpucast::RandomBlock block = gpucast::philox(seed, low, high);
    for (int i = 0; i < 4; ++i) words[i] = block.word[i];
}
"""


def test_words_of_the_kernels(tmp_path: Path) -> None:
    library = build(gpucast.device_function("FLOAT", "FLOAT8E5M2", rounding="stochastic") + STREAM, tmp_path)
    got = np.empty(29, np.uint32)
    for counter, key, result in KNOWN:
        a, b, c, d, low, high = _words(f"{counter} {key}")
        library.philox(*(ctypes.c_uint64(y << 32 | x) for x, y in ((low, high), (a, b), (c, d))), _pointer(got))
        assert got[:4].tolist() == _words(result)
    for random in STREAMS:
        wanted = exact_cast.random_words(random, 45)
        for begin in range(16):
            library.random_words(
                *map(ctypes.c_uint64, random), ctypes.c_int64(begin), _pointer(got), ctypes.c_int(got.size)
            )
            assert np.array_equal(got, wanted[begin : begin + got.size])


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


# ---- what the rule is for ----


@pytest.mark.parametrize("dst", DESTINATIONS, ids=str)
def test_the_mean_of_many_roundings(dst: DType) -> None:
    n = 1 << 16
    for value in (1.2, -0.3, 2.0**-9 + 2.0**-21, 0.37 * gpucast.finfo(dst).smallest_subnormal):
        x = np.full(n, value, np.float32)
        got = gpucast.cast(gpucast.cast(x, dst, rounding="stochastic", seed=17), "DOUBLE")
        (low, high), wanted = np.unique(got), float(x[0] if dst.signed else abs(x[0]))
        p = (wanted - low) / (high - low)
        assert abs(got.mean() - wanted) <= 5 * (high - low) * (p * (1 - p) / n) ** 0.5
