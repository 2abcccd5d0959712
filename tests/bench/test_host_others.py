# SPDX-License-Identifier: Apache-2.0
"""bench/host/others.py: quantizing on the host beside other libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.host import others
from gpucast.core.extension import MODULE

ROW = {"library": "ggml", "theirs": "q8_0", "format": "int8_32", "ours_speed": 2000.0, "their_speed": 2500.0}
FIGURES: dict[str, Any] = {
    "machine": {"processor": "AMD EPYC", "date": "2026-11-29", "commit": "0123456789ab"},
    "versions": {"ggml": "0.20.2", "torchao": "0.18.0"},
    "shape": [1024, 4096],
    "rows": [ROW | {"direction": "quantize"}, ROW | {"direction": "dequantize", "ours_speed": 5000.0}],
}


def test_losing_rows_stand_in_the_table() -> None:
    text = others.table(FIGURES)
    assert "ggml 0.20.2, torchao 0.18.0" in text
    line = "| ggml | q8_0 | int8_32 | 2,000 / 2,500 = 0.8 | 5,000 / 2,500 = 2.0 |"
    assert line in text.splitlines()


@pytest.mark.skipif(MODULE is None, reason="the extension module could not be built here")
def test_both_directions_are_measured() -> None:
    x, ran = np.ones((2, 64), np.float32), []
    calls = (lambda: ran.append("quantize")), (lambda: ran.append("dequantize"))
    rows = list(others._compared("a library", "its own", "mxfp8e4m3", x, calls, 2))
    assert [row.direction for row in rows] == ["quantize", "dequantize"]
    assert set(ran) == {"quantize", "dequantize"} and all(row.ours_speed > 0 for row in rows)


def test_the_newest_figures_are_read(tmp_path: Path) -> None:
    for day in ("2026-11-28", "2026-11-29"):
        (tmp_path / f"quantize-others-{day}.json").write_text(json.dumps(FIGURES | {"day": day}))
    assert others.newest(tmp_path)["day"] == "2026-11-29"
