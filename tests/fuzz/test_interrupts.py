# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a large cast: the call ends, and nothing works on its arrays any more."""

from __future__ import annotations

from fuzz import programs


def test_casts_interrupted_at_random_times(exhaustive: bool) -> None:
    given = {"seed": 1, "runs": 1000 if exhaustive else 60, "elements": 1 << 27 if exhaustive else 1 << 24}
    # Memory that is given back is overwritten: who goes on reading it finds other numbers.
    result = programs.run("interrupted_casts", given, MALLOC_PERTURB_="165")
    programs.noted("interrupts", runs=given["runs"], interrupted=result["interrupted"])
    print(f"the longest time after a signal: {result['longest']:.3f} s")
    assert result["problems"] == []
    assert result["interrupted"] > given["runs"] // 4
