# SPDX-License-Identifier: Apache-2.0
"""The proof's specification against the reference, and the meaning of its terms for NumPy against that for solvers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from codes import by_rule
from endings import HANGS
from gpucast.core.dtypes import DType
from gpucast.core.fuse import Random
from gpucast.core.rule import CastRule
from gpucast.parity.cases import NUMERIC, SMALL, WIDE, rules, stochastic_cases
from gpucast.parity.compare import wanted_codes
from gpucast.reference import exact_cast
from hard_codes import hard_codes
from tests.proof import terms as t
from tests.proof.evaluation import evaluate
from tests.proof.solvers import ask
from tests.proof.specification import random_word, specification
from tests.proof.terms import BRAIN, HALF, SINGLE, TWICE, Term, const

NDArray = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def fresh_terms() -> None:
    t.forget()


def specified(rule: CastRule, codes: NDArray, words: NDArray | None = None) -> NDArray:
    code, word = t.var("x", rule.src.bits), t.var("word", 32)
    inputs = {code: codes} if words is None else {code: codes, word: words}
    return evaluate(specification(rule, code, None if words is None else word), inputs)


def destinations(src: DType, exhaustive: bool) -> tuple[DType, ...]:
    """All, or half of them: each source another one."""
    return NUMERIC if exhaustive else NUMERIC[NUMERIC.index(src) % 2 :: 2]


@pytest.mark.parametrize("src", SMALL, ids=str)
def test_it_is_the_reference_for_every_code_of_16_bits_or_fewer(src: DType, exhaustive: bool) -> None:
    codes = np.arange(1 << src.bits, dtype=src.code_numpy)
    for dst in destinations(src, exhaustive):
        for rule in (*rules(src, dst), *by_rule(src, dst, exhaustive)):
            t.forget()
            np.testing.assert_array_equal(specified(rule, codes), wanted_codes(rule, codes), err_msg=str(rule))


@pytest.mark.parametrize("src", WIDE, ids=str)
def test_it_is_the_reference_for_hard_values_of_wide_sources(src: DType, exhaustive: bool) -> None:
    for dst in NUMERIC:
        codes = hard_codes(src, dst, 1200)
        for rule in (*rules(src, dst), *by_rule(src, dst, exhaustive)):
            t.forget()
            found = specified(rule, codes).astype(np.uint64)
            np.testing.assert_array_equal(found, wanted_codes(rule, codes), err_msg=str(rule))


@pytest.mark.parametrize("src", NUMERIC, ids=str)
def test_it_is_the_reference_at_random(src: DType, exhaustive: bool) -> None:
    for dst in destinations(src, exhaustive):
        for case in stochastic_cases(src, dst):
            t.forget()
            rng = np.random.default_rng(dst.number or 0)
            codes = hard_codes(src, dst, 300)
            words = rng.integers(0, 1 << 32, codes.size, dtype=np.uint32)
            words[::3] = rng.choice(np.array([0, 1, 2**31, 2**32 - 1], np.uint32), words[::3].size)
            wanted = exact_cast.apply(codes.view(src.numpy), case.rule, words).view(dst.code_numpy)
            np.testing.assert_array_equal(specified(case.rule, codes, words), wanted, err_msg=str(case))


def test_its_random_words_are_those_of_the_reference() -> None:
    given = Random(0x0123456789ABCDEF, 2**36 - 3)
    wanted = exact_cast.random_words(given, 9)
    found = [int(random_word(const(given.seed, 64), given.offset + place)) for place in range(9)]
    assert found == wanted.tolist()


# ---- what terms mean, to NumPy and to solvers ----

#: Codes of FLOAT, as the upper bits of those of DOUBLE and, cut, of the 16-bit formats.
_CODES = (
    0, 1, 0x80000000, 0x00800000, 0x3F800000, 0xBF800001, 0x3F7FFFFF, 0x40490FDB, 0x477FE000, 0x477FF000, 0x7F7FFFFF,
    0x4F000000, 0xCF000000, 0x5F000000, 0x5F7FFFFF, 0x33800001, 0xC2C80000, 0x7F800000, 0x7FC00000, 0x4B400001,
    0x38FFF000, 0x3EFFFFFF, 0x40200000, 0x40600000,
)  # fmt: skip


def values(form: tuple[int, int]) -> list[Term]:
    width = sum(form)
    if form == TWICE:
        codes = np.array(_CODES, np.uint32).view(np.float32).astype(np.float64)
        codes = (codes * (1 + 2.0**-50)).view(np.uint64)
    elif form == HALF:
        with np.errstate(over="ignore"):
            codes = np.array(_CODES, np.uint32).view(np.float32).astype(np.float16).view(np.uint16)
    else:
        codes = np.array(_CODES, np.uint64) >> np.uint64(32 - width)
    return [const(int(code), width) for code in codes]


def operations() -> list[Term]:
    found = []
    for form, mode in itertools.product((HALF, BRAIN, SINGLE), ("rn", "rz")):
        numbers, width = values(form), sum(form)
        for one, other, third in zip(numbers, numbers[5:] + numbers[:5], numbers[7:] + numbers[:7], strict=True):
            found += [t.arithmetic(op, width, (one, other), form, mode) for op in ("fadd", "fmul")]
            found.append(t.arithmetic("fma", width, (one, other, third), form, mode))
    for form, mode in itertools.product((SINGLE, TWICE), ("rn", "rz")):
        for one in values(form):
            found.append(t.arithmetic("integral", sum(form), (one,), form, mode))
            for size, signed in ((32, True), (32, False), (64, True)):
                found.append(t.arithmetic("to_int", size, (one,), form, signed, mode))
            found += [t.arithmetic("convert", sum(to), (one,), form, to, mode) for to in (HALF, BRAIN, SINGLE, TWICE)]
    for size, signed, mode in itertools.product((32, 64), (True, False), ("rn", "rz")):
        for code in (0, 1, 2**24 + 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 + 2**39 + 1, 2**63 - 1, 2**64 - 1):
            for to in (SINGLE, TWICE) if mode == "rn" else (SINGLE,):
                found.append(t.arithmetic("from_int", sum(to), (const(code, size),), signed, to, mode))
    return found


def test_arithmetic_means_the_same_to_the_solver() -> None:
    """All operations in one question: no result differs from NumPy's, or it is another NaN."""
    differ = const(0, 1)
    for term in operations():
        number = const(int(evaluate(term, {})), term.width)
        form = term.param[1] if term.op in ("convert", "from_int") else term.param[0]
        nan = const(0, 1) if term.op == "to_int" else t.is_nan(number, form)
        same = t.ite(nan, t.is_nan(term, form) if int(nan) else nan, t.eq(term, number))
        differ = t.bitwise("or", differ, t.invert(same))
    assert ask(differ, HANGS)[0] == "unsat"


def test_fields_fall_apart_again() -> None:
    a, b = t.var("a", 8), t.var("b", 8)
    word = t.join((a, b, const(0, 16)))
    assert t.part(word, 8, 8) is b
    assert t.bitwise("and", word, const(0xFF00, 32)) is t.join((const(0, 8), b, const(0, 16)))
    assert t.bitwise("or", t.zext(a, 32), t.shift("shl", t.zext(b, 32), const(8, 32))) is word
    assert t.add(t.zext(a, 32), t.shift("shl", t.zext(b, 32), const(8, 32))) is word
    assert t.shift("lshr", word, const(8, 32)) is t.zext(b, 32)
    assert t.join((t.part(a, 0, 3), t.part(a, 3, 5))) is a
