# SPDX-License-Identifier: Apache-2.0
"""The page on requantizing: its words, and its examples as they are written there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.quantization import FORMATS, RECIPES

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = [
    [cell.strip() for cell in line.strip("|\n ").split(" | ")]
    if not line.rstrip().endswith("|  |")
    else [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (DOCS / "requantizing.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


@pytest.fixture(scope="module")
def page() -> Any:
    sys.path.insert(0, str(DOCS))
    try:
        import requantizing
    finally:
        sys.path.remove(str(DOCS))
    return requantizing


def test_every_format_and_recipe_has_a_row(page: Any) -> None:
    named = [re.findall(r"`([^`]+)`", row[0]) for row in ROWS]
    assert named == [names for names, *_ in page.kinds()]
    assert {name for names in named for name in names} >= RECIPES.keys()
    assert all(any(name.startswith(base) for names in named for base in names) for name in FORMATS)


#: One of each kind: always kept, other codes for the same numbers, other numbers, and by type.
SHOWN = ("mxfp4", "mxfp4_up", "nvfp4", "nvfp4_ue5m3", "float8e4m3fn", "torchao-int4-32", "microxcaling-mxfp4")


@pytest.mark.parametrize("name", SHOWN)
def test_the_words_of_the_page(page: Any, name: str) -> None:
    row = next(row for row in ROWS if f"`{name}`" in row[0])
    format, source = next((format, source) for names, format, source in page.kinds() if name in names)
    for to, word in zip(page.TYPES, row[1:4], strict=True):
        if word:
            assert page.judge(format, source, to, quick=True).word == word


def test_an_example_is_what_it_says(page: Any) -> None:
    """A subnormal scale of NVFP4 is halved, which changes numbers; by the scales that it had a block keeps them."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16] = 2688, 0.0176
    q = gpucast.quantize(x, "nvfp4")
    y = q.dequantize()
    again = gpucast.quantize(y, "nvfp4").dequantize()
    assert (float(y[0, 16]), float(again[0, 16])) == (0.015625, 0.01171875)
    kept = gpucast.quantize(y, "nvfp4", scales_of=q)
    assert kept.data.get().tobytes() == q.data.get().tobytes() and (kept.dequantize() == y).all()
