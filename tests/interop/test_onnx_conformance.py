# SPDX-License-Identifier: Apache-2.0
"""docs/conformance.md says what comes out now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as a module."""
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.delitem(sys.modules, "conformance", raising=False)
    return importlib.import_module("conformance")


@pytest.mark.parametrize("system", ["ml_dtypes", "onnx", "onnxruntime"])
def test_page_is_up_to_date(conformance: ModuleType, capsys: pytest.CaptureFixture[str], system: str) -> None:
    if system == "onnxruntime" and importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime is not installed")
    version = conformance.SYSTEMS[system]().version
    if f"{conformance.MEASURED}{version}." not in conformance.PAGE.read_text(encoding="utf-8"):
        pytest.skip(f"the page was measured with other versions than {version}")
    assert conformance.main(["--check", "--systems", system]) == 0, capsys.readouterr().out


def test_page_has_a_section_for_every_system(conformance: ModuleType) -> None:
    page = conformance.PAGE.read_text(encoding="utf-8")
    assert page.startswith(conformance.INTRO)
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["ONNX's own pages", *(system.title for system in conformance.SYSTEMS.values())]
