# SPDX-License-Identifier: Apache-2.0
"""bench/peers/quantization_error.py: the committed figures are those of the code, and the picture shows all of them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.peers import quantization_error as errors
from gpucast.quantization import FORMATS

FIGURES = json.loads(errors.RESULT.read_text(encoding="utf-8"))


def test_every_format_is_there() -> None:
    assert {name: row["bits"] for name, row in FIGURES["formats"].items()} == {
        name: format.bits for name, format in FORMATS.items()
    }
    assert all(list(row["sqnr"]) == list(errors.DATA) for row in FIGURES["formats"].values())


def test_the_figures_are_those_of_the_code() -> None:
    names = ["mxfp4_up", "nvfp4", "int4_32"]
    found = errors.measured({name: FORMATS[name] for name in names})
    for name in names:
        # NumPy may change how it draws numbers; that moves the ratio by little.
        assert found["formats"][name]["sqnr"] == pytest.approx(FIGURES["formats"][name]["sqnr"], abs=0.1)
    assert (found["seed"], list(found["shape"])) == (FIGURES["seed"], FIGURES["shape"])


def test_ratio() -> None:
    assert errors.ratio(np.array([1.0, 2, 2]), np.array([1.0, 2, 2.3])) == pytest.approx(20)


def test_table_and_picture(tmp_path: Path) -> None:
    lines = errors.table(FIGURES).splitlines()
    assert len(lines) == 2 + len(FORMATS)
    assert lines[2].startswith("| `float8e4m3fn_tensor` | 8 | 31.9 |")
    path = tmp_path / "errors.svg"
    errors.draw(FIGURES, path)
    text = " ".join(ElementTree.parse(path).getroot().itertext())
    shown = [name for name, format in FORMATS.items() if not (format.zero_points and format.element.signed)]
    assert all(f"{name}  " in text for name in shown)
    assert all(kind in text for kind in errors.DATA)
    assert path.read_text(encoding="utf-8") == errors.PICTURE.read_text(encoding="utf-8")
