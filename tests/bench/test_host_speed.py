# SPDX-License-Identifier: Apache-2.0
"""bench/host/casts.py measures casts of the host for real; bench/report/host_tables.py says what that came to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.report import host_tables
from bench.report.host_tables import HostMeasurement

ROWS = [
    HostMeasurement("FLOAT", "INT8", "in range", 1_000_000, {"cast": 1.0, "astype": 2.0}),
    HostMeasurement("FLOAT", "INT8", "1 % special", 1_000_000, {"cast": 3.0, "astype": 2.0}),
    HostMeasurement("INT8", "FLOAT", "in range", 1_000_000, {"cast": 1.0, "astype": 1.0}),
    HostMeasurement("INT8", "BOOL", "in range", 1_000_000, {"cast": 1.0, "astype": 5.0}),
    HostMeasurement("INT8", "INT8", "in range", 1_000_000, {"cast": 9.0, "astype": 1.0}),
    HostMeasurement("INT8", "UINT2", "in range", 1_000_000, {"cast": 1.0}),
    HostMeasurement("INT8", "BOOL", "in range", 1, {"tensor": 3.0, "to": 2.0}),
]


def test_the_table_has_the_worse_kind_of_data_of_everyday_pairs() -> None:
    first, _, one, million = host_tables.table(ROWS).splitlines()
    assert first.startswith("| Elements | cast / astype | cast, out= / copyto |")
    assert one == "| 1 | - | - | - | 1.50, INT8 to BOOL 1.5 |"
    assert million == "| 1,000,000 | 1.00, FLOAT to INT8 1.5 | - | - | - |"


def test_pairs_above_a_goal_are_named() -> None:
    (line,) = host_tables.all_pairs(ROWS)
    assert line == (
        "- 1,000,000 elements, cast / astype, 4 pairs: median 1.25, above 1.1: 2 "
        "(INT8 to INT8 9.00, FLOAT to INT8 1.50)"
    )


def test_the_host_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, chosen = tmp_path / "host.json", ["--src", "FLOAT", "INT8", "--dst", "FLOAT16", "FLOAT6E2M3"]
    assert command.main(["--host", *chosen, "--elements", "1", "1e3", "--repeats", "1", "--json", str(path)]) == 0
    assert "| 1,000 |" in capsys.readouterr().out
    rows = [HostMeasurement(**row) for row in json.loads(path.read_text())["host"]["rows"]]
    forms = [row for row in rows if row.kind == "300 arrays"]
    assert [row.src for row in forms] == ["FLOAT", "INT8"]
    assert all({"cast_many", "astype"} == row.microseconds.keys() for row in forms)
    assert len(rows) == 2 * 2 * 2 * 2 + len(forms)
    for row in rows:
        assert row in forms or {"cast", "cast, out=", "astype", "copyto"} <= row.microseconds.keys()
        assert all(spent > 0 for spent in row.microseconds.values())
    assert len(path.read_text().splitlines()) < 3 * len(rows)
