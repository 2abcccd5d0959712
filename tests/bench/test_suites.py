# SPDX-License-Identifier: Apache-2.0
"""Tests of others are run twice, and what fails with gpucast alone is counted as a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import foreign_tests
from bench.peers.foreign_tests import Suite

TESTS = """
import numpy as np

def test_same():
    assert np.float32([1.5, -2.5]).astype("int8").tolist() == [1, -2]

def test_fails_anyway():
    assert np.float32([1.5]).astype("int8") == 2

def test_payload_of_nan():
    assert np.array([0x7FC00001], "uint32").view("float32").astype("float64").view("uint64") == 0x7FF8000020000000

def test_text():
    assert np.float32([1.5]).astype("U8").tolist() == ["1.5"]
"""


def test_what_gpucast_alone_fails_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_casts.py").write_text(TESTS)
    suite = Suite(("test_casts.py",), "none", rewrite=foreign_tests._functions)
    monkeypatch.setitem(foreign_tests.SUITES, "mine", suite)
    found = foreign_tests.foreign_tests("mine", tmp_path, "1.0")
    assert (found.cases, found.differ, found.first) == (3, 1, "test_casts.test_payload_of_nan")
    # Text is not its matter, and the others are.
    assert found.why == "3 calls of the tests were answered by gpucast; 1 fail without it, too"
    (tmp_path / "test_casts.py").write_text("import nothing_of_this_name")
    with pytest.raises(RuntimeError, match="^mine: its tests did not run"):
        foreign_tests.foreign_tests("mine", tmp_path, "1.0")
