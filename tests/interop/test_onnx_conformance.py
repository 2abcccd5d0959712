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


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("INT32 `16842753` to BFLOAT16", "INT32 `16842752` to BFLOAT16", 1),
        (" NaN to FLOAT4E2M1 | 6 |", " NaN to FLOAT4E2M1 | 7 |", 1),
        ("## ml_dtypes", "## other", 1),
        ("Measured with ml_dtypes ", "Measured with ml_dtypes 0.", 0),
        ("| NaN to integer † |", "| NaN to integer † | changed ", 0),
    ],
)
def test_check_sees_what_matters(
    conformance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, status: int
) -> None:
    text = conformance.PAGE.read_text(encoding="utf-8")
    assert old in text
    made = [f"## {section}" for section in text.split("\n## ")[1:]]
    monkeypatch.setattr(conformance, "sections", lambda systems: made)
    page = tmp_path / "conformance.md"
    page.write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(conformance, "PAGE", page)
    assert conformance.main(["--check"]) == status


def test_the_page_is_never_written_in_part(conformance: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        conformance.main(["--systems", "ml_dtypes"])
    assert "--systems goes with --check" in capsys.readouterr().err
