# SPDX-License-Identifier: Apache-2.0
"""The scoreboard says what the committed results say, and these what the libraries give."""

from __future__ import annotations

import importlib
import json
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from cast_conformance import generate, quantized, report, run
from cast_conformance.adapters import load

ROOT = Path(__file__).resolve().parents[2]
SCORES = Path(__file__).parent / "scores"
#: Among them each fault of each library that the tests can run, and a type that most lack.
PAIRS = (
    "DOUBLE:FLOAT", "DOUBLE:FLOAT8E5M2", "INT32:BFLOAT16", "INT16:FLOAT8E8M0", "FLOAT8E5M2:BOOL", "FLOAT8E4M3FN:INT4",
    "FLOAT8UE5M3:FLOAT",
)  # fmt: skip
#: Libraries that the tests have, and those that are too large for every run.
OURS = ("gpucast", "ml_dtypes", "onnx", "onnxruntime", "c", "jax", "cuda")
PEERS = ("gfloat", "torch", "triton", "tinygrad")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("conformance")


def test_the_page_the_picture_and_the_readme_are_up_to_date(page: ModuleType) -> None:
    assert page.PAGE.read_text("utf-8") == page.page(), "run docs/pages.py"
    assert page.PICTURE.read_text("utf-8") == page.picture(page.systems())
    readme = (page.ROOT / "README.md").read_text("utf-8")
    assert page.readme() in readme, "run docs/pages.py"
    assert {path.stem for path in SCORES.glob("*.json")} == {*page.TITLES, *page.BLOCK_SYSTEMS}


@pytest.mark.parametrize("name", [*OURS, *(pytest.param(one, marks=pytest.mark.peers) for one in PEERS)])
def test_a_library_gives_what_its_score_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's adapter sets it, for all that this process starts.
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    try:
        adapter = load(name)
    except ImportError as error:
        pytest.skip(f"{name}: {str(error)[:80]}")
    score = json.loads((SCORES / f"{name}.json").read_text("utf-8"))
    # Ours is made again with each version.
    if adapter.version() != score["version"] and name != "gpucast":
        pytest.skip(f"the score is of {score['version']}, installed is {adapter.version()}")
    assert adapter.version() == score["version"]
    assert generate.main(["--pairs", *PAIRS, "--out", str(tmp_path)]) == 0
    monkeypatch.setattr("cast_conformance.compare.TABLES", tmp_path)
    pairs = [(src, dst) for src, dst in (pair.split(":") for pair in PAIRS)]
    found = report.as_json(name, run.run(adapter, name, score["modes"], pairs), adapter)
    assert found["modes"].keys() == score["modes"].keys()
    for mode, (src, dst) in product(found["modes"], pairs):
        # Both may lack a pair that the mode does not have.
        cells = [one["modes"][mode]["pairs"].get(src, {}).get(dst) for one in (found, score)]
        assert cells[0] == cells[1], (mode, src, dst)
    assert any(one["pairs"] for one in found["modes"].values())


@pytest.mark.peers
@pytest.mark.parametrize("name", ["compressed_tensors", "gfloat", "torchao"])
def test_a_quantizer_gives_what_its_score_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    adapter = load(name)
    score = json.loads((SCORES / f"{name}.json").read_text("utf-8"))
    if adapter.version() != score["version"]:
        pytest.skip(f"the score is of {score['version']}, installed is {adapter.version()}")
    formats = [*score["blocks"]["formats"]]
    assert generate.main(["--formats", *formats, "--out", str(tmp_path)]) == 0
    monkeypatch.setattr("cast_conformance.quantized.TABLES", tmp_path)
    assert quantized.run_blocks(adapter, formats) == score["blocks"]["formats"]
