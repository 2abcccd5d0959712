# SPDX-License-Identifier: Apache-2.0
"""bench/host/quantize.py: the formulas do what gpucast does, and the committed figures are complete."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.host import quantize as bench
from gpucast import cast, dtype
from gpucast.quantization import FORMATS, quantize_on_host
from quantization_cases import Array


@pytest.mark.parametrize("name", FORMATS)
def test_the_formulas_are_those_of_the_formats(name: str) -> None:
    format = FORMATS[name]
    x: Array = np.random.default_rng(5).standard_normal((128, 256)).astype(np.float32)
    for kind in bench.TYPES:
        given = cast(x, kind)
        parts = quantize_on_host.quantize(given, format)
        codes, scale, zero = bench.quantize_formula(given, format)
        assert codes.dtype == parts.data.dtype
        # A quotient rounded to FLOAT may be a midpoint, and so may many of numbers of few bits.
        differ = codes.reshape(x.shape).astype(np.float32) != parts.data.astype(np.float32)
        assert np.count_nonzero(differ) <= x.size // 100
        scales = (s.reshape(parts.scales.shape).astype(np.float32) for s in (scale, parts.scales))
        assert np.isclose(*scales).mean() > 0.99
        assert (zero is None) == (parts.zero_points is None)
        assert zero is None or np.mean(zero.reshape(parts.scales.shape) == parts.zero_points) > 0.98
        one, other = (f(parts, format, dtype(kind)) for f in (bench.dequantize_formula, quantize_on_host.dequantize))
        assert one.dtype == other.dtype and np.allclose(one.astype(float), other.astype(float), rtol=2.0**-7)


def test_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SHAPE", (128, 128))
    path = tmp_path / "quantize-host-2026-01-01.json"
    assert bench.main(["nvfp4", "int4_zp_32", "--type", "FLOAT", "--repeats", "1", "--out", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    found = bench.newest(tmp_path)
    assert [(row["format"], row["direction"]) for row in found["rows"]] == [
        (name, direction) for name in ("nvfp4", "int4_zp_32") for direction in bench.DIRECTIONS
    ]
    assert all(row["ours"] > 0 < row["formula"] for row in found["rows"])


def test_the_committed_figures() -> None:
    found = bench.newest()
    assert [(row["format"], row["type"], row["direction"]) for row in found["rows"]] == [
        (name, kind, direction) for name in FORMATS for kind in bench.TYPES for direction in bench.DIRECTIONS
    ]
    assert found["shape"] == list(bench.SHAPE)
    lines = bench.table(found).splitlines()
    pairs = {(row.element, row.scale, row.zero_points) for row in FORMATS.values()}
    assert sum(line.startswith("| ") for line in lines) == len(pairs) + 2
    assert lines[-1].startswith("Slower than the formula: ")


def test_losing_rows_are_told() -> None:
    found = json.loads(json.dumps(bench.newest()))
    found["rows"][0] |= {"ours": 90.0, "formula": 100.0}
    row = found["rows"][0]
    assert f"`{row['format']}` quantize FLOAT 0.90" in bench.table(found).splitlines()[-1]
