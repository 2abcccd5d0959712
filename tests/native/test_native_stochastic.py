# SPDX-License-Identifier: Apache-2.0
"""Random rounding by the host's library: the reference's results, whatever the words, and however an array lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.arrays.packed import PackedArray
from gpucast.core.dtypes import DTYPES, dtype
from gpucast.core.random import Random
from gpucast.core.rule import CastRule
from gpucast.cpu import compiled
from gpucast.native import library, stochastic, threads
from gpucast.parity import hard_values
from gpucast.parity.cases import stochastic_cases
from gpucast.reference import casting as reference

NUMERIC = [kind for kind in DTYPES if kind.family != "string"]
#: The sources of every run; with --exhaustive all are.
ALWAYS = ("FLOAT", "DOUBLE", "FLOAT8E4M3FN", "INT32")
#: Words from a block's first and third on, blocks beyond 32 bits, and beyond the last offset.
RANDOMS = (Random(7), Random(2**64 - 1, 6), Random(1, 2**34 - 5), Random(3, 2**64 - 3))


def found(rule: CastRule) -> stochastic.StochasticCast:
    stochastic.find(rule, 1)
    library.finish()
    cast = stochastic.find(rule)
    assert cast is not None, rule
    return cast


@pytest.mark.parametrize("src", [kind.name for kind in NUMERIC])
def test_every_rule_is_the_references(src: str, native: None, exhaustive: bool) -> None:
    if src not in ALWAYS and not exhaustive:
        pytest.skip("with --exhaustive")
    kind = dtype(src)
    for rule in dict.fromkeys(case.rule for dst in NUMERIC for case in stochastic_cases(kind, dst)):
        if kind.bits > 16:
            codes = hard_values.codes(kind, rule.dst, seed=2, share=0.05, random=2_000)
        else:
            codes = np.arange(max(1 << 10, 1 << kind.bits)).astype(kind.code_numpy)
        cast, out = found(rule), np.empty(codes.size, rule.dst.code_numpy)
        for random in RANDOMS:
            cast(codes, out, random)
            wanted = reference.apply(codes.view(kind.numpy), rule, reference.random_words(random, codes.size))
            wrong = np.flatnonzero(out != wanted.view(rule.dst.code_numpy))
            assert not wrong.size, (rule, random, hex(codes[wrong[0]]), hex(out[wrong[0]]))


def test_public_casts_take_it(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((70, 81)).astype(np.float32)
    x[3, :5] = np.nan, np.inf, -np.inf, -0.0, 1e30
    strided = np.empty((70, 162), np.float32)[:, ::2]
    strided[...] = x
    given = [x, np.asfortranarray(x), strided, x.astype(">f4")]
    how: dict[str, Any] = {"rounding": "stochastic", "seed": 5, "offset": 2**64 - 999}

    def results() -> list[bytes]:
        return [gpucast.cast(one, "FLOAT16", **how).tobytes() for one in given]

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "FINDERS", [])
        wanted = results()
    found(stochastic_rule("FLOAT", "FLOAT16"))
    seen: list[int] = []
    plain = stochastic.StochasticCast.__call__

    def note(self: stochastic.StochasticCast, codes: Any, out: Any, random: Random) -> None:
        seen.append(codes.size)
        plain(self, codes, out, random)

    monkeypatch.setattr(stochastic.StochasticCast, "__call__", note)
    assert results() == wanted
    assert sum(seen) == 4 * x.size
    assert not seen.clear()
    gpucast.cast(x[0], "FLOAT16", **how)
    assert seen == [], "short arrays do not look for it"


def test_packed_arrays_take_it(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = PackedArray.pack(gpucast.cast(np.arange(5000) % 16, "UINT4"))
    how: dict[str, Any] = {"rounding": "stochastic", "seed": 9, "offset": 3}
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "FINDERS", [])
        wanted = gpucast.cast(x, "FLOAT6E2M3", **how).tobytes()
    found(stochastic_rule("UINT4", "FLOAT6E2M3"))
    assert gpucast.cast(x, "FLOAT6E2M3", **how).tobytes() == wanted


def test_results_do_not_depend_on_threads(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(4).standard_normal(100_003).astype(np.float32).view(np.uint32)
    cast = found(stochastic_rule("FLOAT", "BFLOAT16"))
    out, wanted = np.empty((2, x.size), np.uint16)
    cast(x, wanted, Random(1, 6))
    monkeypatch.setattr(threads, "PART", 1 << 14)
    monkeypatch.setattr(threads, "most", lambda: 5)
    cast(x, out, Random(1, 6))
    assert np.array_equal(out, wanted)


def stochastic_rule(src: str, dst: str) -> CastRule:
    """The rule of the default attributes."""
    return stochastic_cases(dtype(src), dtype(dst))[0].rule
