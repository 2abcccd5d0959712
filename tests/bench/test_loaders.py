# SPDX-License-Identifier: Apache-2.0
"""bench/peers/loaders.py: the committed table has every family in every style, and says what the docs say of it."""

from __future__ import annotations

import json

from bench.peers import loaders

ROWS = json.loads(loaders.RESULT.read_text(encoding="utf-8"))["rows"]


def test_every_family_in_every_style() -> None:
    styles = [" ".join(one) for one in loaders.STYLES]
    assert [(row["family"], row["style"]) for row in ROWS] == [
        (family, style) for family in loaders.FAMILIES for style in styles
    ]
    lines = loaders.table({"rows": ROWS}).splitlines()
    assert len(lines) == 2 + len(styles) and all(f"| {family} |" in lines[0] for family in loaders.FAMILIES)
    assert sum(line.count("fails") for line in lines) == sum("error" in row for row in ROWS)


def test_what_loads_is_near_the_original() -> None:
    """But for the experts whose global scale transformers leaves out."""
    for row in ROWS:
        is_dense = row["family"].startswith("Llama")
        assert is_dense or "error" not in row or "block" in row["style"] or "mx" in row["style"], row
        if "error" in row:
            assert not is_dense, row
        elif is_dense or "nvfp4" not in row["style"]:
            assert row["cosine"] > 0.95, row
            assert row["difference"] == 0 or " mx " in row["style"] or " nvfp4 " in row["style"], row
