# SPDX-License-Identifier: Apache-2.0
"""The evidence in the ledger exists; suites of others are run where they are installed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.peers import foreign_tests, suites, t27
from bench.peers.four_over_six import Blocks, causes_of
from gpucast.quantization import FORMATS, RECIPES

ROOT = Path(__file__).resolve().parents[2]
#: The module of each package.
MODULES = {"softfloat": "softfloatpy", "zmij": "pyzmij", "p3109": "gfloat", "onnx": "onnx"}


@pytest.fixture(scope="module")
def ledger() -> Any:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import ledger
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return ledger


def test_evidence_exists_and_nothing_was_measured(ledger: Any) -> None:
    text = ledger.PAGE.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((\.\./[^)#]+)\)", text):
        assert (ROOT / "docs" / link).exists(), link
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert {row[-1].strip(" |") for row in rows} == {"", "---", "Measured on a GPU"}
    claims = " ".join(row[0] for row in rows)
    assert all(f"`{name}`" in claims for name in RECIPES)
    assert all(re.sub(r"_(tensor|axis|\d+x?\d*)$", "", name) in claims for name in FORMATS)


def test_suites_of_others_differ_nowhere() -> None:
    rows = json.loads(suites.RESULT.read_text(encoding="utf-8"))
    assert {row["suite"] for row in rows} >= {
        "SoftFloat (softfloatpy)",
        "TestFloat (testfloat_gen)",
        "zmij (pyzmij)",
        "gfloat's tests",
        "ml_dtypes's tests",
        *(f"{name}'s tests" for name in foreign_tests.SUITES),
        *("t27 (tt-lang-t27)", "fast_float", "ONNX's node tests", "fouroversix's reference"),
    }
    for row in rows:
        assert row["cases"] > 0 and row["differ"] == 0 and row["licence"], row["suite"]
        assert row["why"] or not row["legal"]


@pytest.mark.peers
@pytest.mark.parametrize("name", suites.PACKAGES)
def test_a_suite_of_others(name: str) -> None:
    pytest.importorskip(MODULES[name])
    found = suites.PACKAGES[name](2000)
    assert found.cases > 500 and found.differ == 0, found.first


def test_casts_in_tests_of_others_are_replaced() -> None:
    text = foreign_tests._functions("y = x.astype(kind).astype(np.float32, copy=False)\n")
    assert text.splitlines()[-1] == "y = gpucast_astype(gpucast_astype(x, kind), np.float32, copy=False)"
    before = foreign_tests.ANSWERED["calls"]
    assert foreign_tests.astype(np.float32([1e9, 2.5]), np.float16).tolist() == [np.inf, 2.5]
    assert foreign_tests.astype(np.float32([2.9]), np.int8).tolist() == [2]
    assert foreign_tests.astype(np.float32([1]), complex).dtype == np.complex128
    assert foreign_tests.ANSWERED["calls"] == before + 2


def test_a_block_that_differs_has_a_cause_or_none() -> None:
    """Blocks of 16 by a global scale of 1: ours, theirs, and the cause of the difference."""

    def cause(numbers: list[float], ours: tuple[int, list[int]], theirs: tuple[int, list[int]]) -> str:
        rows = np.zeros((1, 16))
        rows[0, : len(numbers)] = numbers
        sides = (
            Blocks(np.uint8([scale]), np.uint8([codes + [0] * (16 - len(codes))])) for scale, codes in (ours, theirs)
        )
        ours_, theirs_ = sides
        return str(causes_of(rows, 1.0, theirs_, ours_)[0])

    one = 0x38  # 1.0 as FLOAT8E4M3FN
    assert cause([], (1, []), (0, [])) == "zeros"
    assert cause([], (1, []), (0, [1])) == ""
    assert cause([6, 2.5 * (1 + 2**-23)], (one, [7, 5]), (one, [7, 4])) == "element"
    assert cause([6, 2.75], (one, [7, 5]), (one, [7, 4])) == ""
    # 6.375 / 6 is the middle of the scales 1 and 1.125, 1.5 that of the largest number by 4.
    assert cause([6.375], (one, [7]), (one + 1, [7])) == "scale"
    assert cause([6.25], (one, [7]), (one + 1, [7])) == ""
    # By 6 and by 4 a block of equal numbers is exact; 5 is not by 6.
    assert cause([6], (one, [7]), (one + 4, [6])) == "error"
    assert cause([6, 5], (one, [7, 6]), (one + 4, [6, 5])) == ""


def test_the_catalogue_of_t27_is_taken_whole() -> None:
    named = [*t27.HERE, *" ".join(t27.ELSEWHERE.values()).split()]
    assert len(named) == len(set(named)) == 84


def test_numbers_that_no_integer_is() -> None:
    x = np.float64([2**31 - 1, 2**31 - 0.5, 2**31, -(2**31) - 0.5, -(2**31) - 1, 1e300, np.nan, 5])
    outside = suites._is_outside(x, suites.dtype("INT32"), "truncate")
    assert outside.tolist() == [False, False, True, False, True, True, True, False]
    assert suites._is_outside(x, suites.dtype("INT32"), "nearest_even")[1]
