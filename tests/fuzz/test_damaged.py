# SPDX-License-Identifier: Apache-2.0
"""Damaged files: a right result or one clear error, little memory, and nothing read or written outside the folder."""

from __future__ import annotations

from pathlib import Path

from fuzz import programs

#: The files of a kind in each run of the tests, and with --exhaustive.
SOME, ALL = 100, 20_000
#: So many are a case: a fork.
_CASE = 1000


def test_a_damaged_file_is_read_right_or_refused(tmp_path: Path, exhaustive: bool) -> None:
    count = ALL if exhaustive else SOME
    cases = [
        {"kind": kind, "begin": begin, "end": min(begin + _CASE, count)}
        for kind in ("npy", "npz", "pb", "onnx", "safetensors", "json")
        for begin in range(0, count, _CASE)
    ]
    # One arena: what threads have reserved is no memory that was taken.
    results = programs.run("damaged_files", cases, TMPDIR=str(tmp_path), MALLOC_ARENA_MAX="1")
    problems = [problem for result in results for problem in result.pop("problems")]
    assert not problems, "\n".join(problems)
    for case, figures in zip(cases, results, strict=True):
        programs.noted(f"{case['kind']} from {case['begin']}", **figures)
        # That the damage is seen, and not all of it refused.
        assert figures["ended with 1"] > (case["end"] - case["begin"]) / 4
        assert figures["ended with 0"] > 0
        assert case["kind"] == "json" or figures["results compared"] > 0
