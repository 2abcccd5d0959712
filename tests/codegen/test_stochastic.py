# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding: the random words, and what reference, host path and kernels make of them."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exact
import functions_on_host
import gpucast
from codes import assert_codes, assert_same, every_code
from gpucast.arrays.operand import operand
from gpucast.codegen.cast_kernel import join, kernel_file, kernel_source, options, prelude, structs
from gpucast.core.dtypes import DTYPES, DType, dtype
from gpucast.core.fused_ops import FusedInputs, Random, resolve_random
from gpucast.core.rule import CastRule, Options, has_stochastic, resolve
from gpucast.host import cast_on_host
from gpucast.parity import hard_values
from gpucast.parity.cases import NUMERIC, stochastic_cases
from gpucast.reference import exact_cast

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


def on_host(x: Any, rule: CastRule, out: Any = None, random: Random | None = None) -> Any:
    """The cast of the host's path."""
    fused = None if random is None else FusedInputs(random=random)
    return cast_on_host.apply(operand(x), rule, None if out is None else operand(out), fused).array


def test_which_types_are_rounded_at_random() -> None:
    names = "FLOAT16 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT4E2M1 FLOAT6E2M3 FLOAT6E3M2"
    assert {row.name for row in DESTINATIONS} == set(names.split())
    for src in DTYPES:
        for dst in DTYPES:
            if src.family != "string" and has_stochastic(dst):
                rule = resolve(src, dst, Options(rounding="stochastic"))
                assert (rule.rounding == "stochastic") == (src is not dst)
            else:
                with pytest.raises(ValueError, match=r"^cast: rounding='stochastic' does not apply to (text|\w+); exp"):
                    resolve(src, dst, Options(rounding="stochastic"))


@pytest.mark.parametrize(
    ("rounding", "seed", "offset", "error", "match"),
    [
        ("stochastic", None, 0, ValueError, r"rounding='stochastic' needs seed=, an integer from 0 to 2\^64 - 1"),
        ("stochastic", -1, 0, ValueError, "seed=-1 is out of range; expected 0 to"),
        ("stochastic", 2**64, 0, ValueError, "seed=18446744073709551616 is out of range"),
        ("stochastic", 1, 2**64, ValueError, "offset=18446744073709551616 is out of range"),
        ("stochastic", 1.0, 0, TypeError, "seed=1.0 must be an integer"),
        ("stochastic", True, 0, TypeError, "seed=True must be an integer"),
        ("stochastic", 1, "2", TypeError, "offset='2' must be an integer"),
        (None, 1, 0, ValueError, "seed=1 does not apply to rounding=None; expected 'stochastic'"),
        ("truncate", None, 4, ValueError, "offset=4 does not apply to rounding='truncate'"),
    ],
)
def test_bad_seeds_and_offsets(rounding: Any, seed: Any, offset: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=f"^cast: {match}"):
        resolve_random(rounding, seed, offset)


def test_seeds_and_offsets() -> None:
    assert resolve_random("stochastic", np.uint64(2**64 - 1), np.int8(3)) == (2**64 - 1, 3)
    assert resolve_random("stochastic", 0, 0) == Random(0)
    assert resolve_random(None, None, 0) is None


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


def sample(src: DType, dst: DType, exhaustive: bool) -> np.ndarray:
    if src.bits <= 8:
        return np.repeat(every_code(src), 4 if exhaustive else 1)
    if src.bits == 16:
        return np.ascontiguousarray(every_code(src)[11 :: 7 if exhaustive else 331])
    found = hard_values.codes(src, dst, seed=3, share=1 / 64, random=200)
    return found if exhaustive else np.ascontiguousarray(found[:: found.size // 300])


def wanted_codes(codes: np.ndarray, rule: CastRule, words: np.ndarray) -> np.ndarray:
    return np.array(exact.cast_codes(codes, rule, words), dtype=rule.dst.code_numpy)


def groups(exhaustive: bool) -> list[CastRule]:
    sources = NUMERIC if exhaustive else tuple(map(dtype, SOURCES))
    return [case.rule for src in sources for dst in DESTINATIONS for case in stochastic_cases(src, dst)]


def functions(group: list[CastRule], folder: Path) -> ctypes.CDLL:
    """`convert_stochastic` of each rule, and the words of a stream, as host code."""
    text = """
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
template <typename Src, typename Dst, typename Word, typename In, typename Out, typename R>
void convert(const In* codes, const gpucast::u32* words, Out* out, int n, R rule) {
    for (int i = 0; i < n; ++i) out[i] = Out(gpucast::convert_stochastic<Src, Dst>(Word(codes[i]), words[i], rule));
}
"""
    for number, rule in enumerate(group):
        word = "gpucast::u64" if rule.src.bits > 32 else "gpucast::u32"
        code, out = (f"gpucast::u{max(row.bits, 8)}" for row in (rule.src, rule.dst))
        text += f"""
extern "C" void convert_{number}(const {code}* codes, const gpucast::u32* words, {out}* out, int n) {{
    const gpucast::CastRule<{options(rule)}> rule = {{}};
    convert<gpucast::{rule.src.name}, gpucast::{rule.dst.name}, {word}>(codes, words, out, n, rule);
}}
"""
    files = [prelude(), kernel_file("philox.cuh"), kernel_file("stochastic.cuh")]
    return functions_on_host.build(join("\n".join(files), dict(structs(*NUMERIC)), [text]), folder)


def test_every_implementation_is_the_exact_model(tmp_path: Path, exhaustive: bool) -> None:
    group = groups(exhaustive)
    library = functions(group, tmp_path)
    rng = np.random.default_rng(4)
    for number, rule in enumerate(group):
        codes = sample(rule.src, rule.dst, exhaustive)
        words = words_for(codes, rule, rng)
        wanted = wanted_codes(codes, rule, words)
        assert_codes(exact_cast.apply(codes.view(rule.src.numpy), rule, words).view(wanted.dtype), wanted, rule, codes)
        got = np.empty_like(wanted)
        library[f"convert_{number}"](*map(_pointer, (codes, words, got)), codes.size)
        assert_codes(got, wanted, f"kernels: {rule}", codes)


def test_words_of_the_kernels(tmp_path: Path) -> None:
    library = functions([], tmp_path)
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
        got = on_host(x, resolve(dtype("FLOAT"), dst, Options(rounding="stochastic")), random=Random(17)).astype(float)
        (low, high), wanted = np.unique(got), float(x[0])
        p = (wanted - low) / (high - low)
        assert abs(got.mean() - wanted) <= 5 * (high - low) * (p * (1 - p) / n) ** 0.5


# ---- whole arrays on the host ----


RULE = resolve(dtype("FLOAT"), dtype("BFLOAT16"), Options(rounding="stochastic"))


def test_an_offset_continues_a_stream() -> None:
    x = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    wanted = on_host(x, RULE, random=Random(9, 2))
    for cut in (1, 2, 3, 4, 40_003):
        parts = (
            on_host(x[:cut], RULE, random=Random(9, 2)),
            on_host(x[cut:], RULE, random=Random(9, 2 + cut)),
        )
        assert_same(np.concatenate(parts), wanted)
    assert not np.array_equal(on_host(x, RULE, random=Random(10, 2)), wanted)
    for cast in (exact_cast.cast, gpucast.cast):
        assert_same(wanted, cast(x, "BFLOAT16", rounding="stochastic", seed=9, offset=2))
        with pytest.raises(ValueError, match=r"^cast: rounding='stochastic' needs seed="):
            cast(x, "BFLOAT16", rounding="stochastic")
        assert_same(cast(wanted, "BFLOAT16", rounding="stochastic", seed=1), wanted)


def test_kernels_of_plain_casts_refuse_the_rule() -> None:
    with pytest.raises(ValueError, match="kernel_source: FLOAT to BFLOAT16 at random has only fused"):
        kernel_source(RULE)
