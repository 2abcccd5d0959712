# SPDX-License-Identifier: Apache-2.0
"""bench/peers/quantization.py: the committed figures are those of the code, and say what the docs do of other tools."""

from __future__ import annotations

import json

import pytest

from bench.peers import quantization as peers
from bench.peers.quantization_error import DATA

FIGURES = json.loads(peers.RESULT.read_text(encoding="utf-8"))
ERRORS = {(row["what"], row["by"]): row["error"] for row in FIGURES["rows"]}


def test_our_figures_are_those_of_the_code() -> None:
    ways = list(peers.ours())
    assert ways and {(what, by) for what, by, _ in ways} == {key for key in ERRORS if key[1].startswith("`")}
    chosen = [way for way in ways if way[1] in ("`mxfp4_even`", "`int2_32_full_range`", "`int4_128_no_clipping`")]
    for row in peers.measured(chosen):
        # NumPy may change how it draws numbers; that moves the error by little.
        assert row["error"] == pytest.approx(ERRORS[row["what"], row["by"]], rel=0.02)


@pytest.mark.parametrize(
    ("what", "tool", "name"),
    [
        ("MXFP8 (E4M3)", "llm-compressor", "mxfp8e4m3_up"),
        ("MXFP8 (E4M3)", "torchao EVEN", "mxfp8e4m3_even"),
        ("MXFP4", "llm-compressor", "mxfp4_even"),
        ("MXFP4", "torchao FLOOR", "mxfp4"),
        ("MXFP4", "torchao EVEN", "mxfp4_even"),
        ("MXFP4", "torchao RCEIL", "mxfp4_up"),
        ("NVFP4", "llm-compressor", "nvfp4"),
        ("INT8 by rows", "llm-compressor", "int8_axis_full_range"),
        ("INT4 by 128", "llm-compressor", "int4_128_full_range"),
        ("INT2 by 32", "torchao SYMMETRIC_NO_CLIPPING_ERR", "int2_32_no_clipping"),
    ],
)
def test_the_error_is_that_of_the_tool_with_its_rule(what: str, tool: str, name: str) -> None:
    assert ERRORS[what, f"`{name}`"] == pytest.approx(ERRORS[what, tool], rel=1e-3)


def test_the_table_has_every_row() -> None:
    lines = peers.table(FIGURES).splitlines()
    assert len(lines) == 2 + len(FIGURES["rows"]) and all(kind in lines[0] for kind in DATA)
    assert [row["what"] for row in FIGURES["rows"]] == sorted(
        (row["what"] for row in FIGURES["rows"]), key=list(peers.OURS).index
    )
