# SPDX-License-Identifier: Apache-2.0
"""bench/host/pairs.py: casts of all pairs beside a copy of as many bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.host import pairs
from bench.host.pairs import PairMeasurement
from gpucast.core.extension import MODULE

ROWS = [PairMeasurement("INT8", "FLOAT", 20.0, 30.0), PairMeasurement("INT8", "INT4", 50.0, 50.0)]


def test_a_line_and_the_summary() -> None:
    assert pairs.line(ROWS[0]).split() == "INT8 FLOAT 20.0 GB/s, the copy 30.0: 1.50 of its time".split()
    assert pairs.summary(ROWS) == "2 pairs: median 1.25 of a copy's time; above 1.1: 1, above 1.35: 1"


@pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")
def test_pairs_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.json"
    chosen = ["--src", "INT8", "FLOAT16", "--dst", "FLOAT4E2M1", "BOOL", "--elements", "5000", "--repeats", "1"]
    assert pairs.main([*chosen, "--out", str(path)]) == 0
    assert "4 pairs: median" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["elements"] == 5000
    assert [(row["src"], row["dst"]) for row in found["rows"]] == [
        (src, dst) for src in ("INT8", "FLOAT16") for dst in ("FLOAT4E2M1", "BOOL")
    ]
    assert all(row["cast"] > 0 and row["copy"] > 0 for row in found["rows"])
