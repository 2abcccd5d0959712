# SPDX-License-Identifier: Apache-2.0
"""The documentation tells the truth: every snippet runs, every table holds."""

from __future__ import annotations

import contextlib
import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core.errors import SlowHostWarning
from gpucast.host import extension
from test_imports import LAYERS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Its snippets are lines of several libraries with their results, for tests/project/test_switching.py.
COMPARED = DOCS / "switching.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = {page: found for page in PAGES if page != COMPARED and (found := FENCE.findall(page.read_text("utf-8")))}
#: What a snippet may need beyond the tests' own requirements.
OPTIONAL = ("dask", "jax", "modeci_mdf", "onnx", "onnxruntime", "torch")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Checker(doctest.OutputChecker):
    """NumPy writes the names of ml_dtypes in quotes from 2.4 on."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (re.sub(r"dtype='(\w+)'", r"dtype=\1", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


def run(page: Path) -> dict[str, Any]:
    """Run the snippets of a page in their order; the names that they leave."""
    names: dict[str, Any] = {}
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        language, source = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if language == "python":
            exec(compile("\n" * line + source, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(source, names, page.name, str(page), line)
        report: list[str] = []
        runner = doctest.DocTestRunner(Checker(), optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)
        names = test.globs
    return names


def libraries(page: Path) -> list[str]:
    """What the snippets of a page import beyond what every machine has."""
    text = "".join(source for _, source in SNIPPETS[page])
    imports = "".join(re.findall(r"^(?:>>> )?(?:import|from) .*\n", text, re.MULTILINE))
    return [library for library in OPTIONAL if re.search(rf"\b(?<!\.){library}\b", imports)]


def param(page: Path) -> Any:
    return pytest.param(page, marks=[pytest.mark.peers] if "torch" in libraries(page) else [], id=name_of(page))


@pytest.mark.parametrize("page", [*map(param, SNIPPETS)])
def test_snippets(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for library in libraries(page):
        pytest.importorskip(library, reason=f"{library} is not installed")
    told: Any = contextlib.nullcontext()
    if page.name == "extending.md":
        # The module was built without this page's type, so the reference casts, which is said once in a process.
        monkeypatch.setattr(extension, "_is_said", False)
        told = pytest.warns(SlowHostWarning, match="casts on the host are slow, by the reference")
    with told:
        names = run(page)
    if page.name == "README.md":
        check_claims(names, page.read_text(encoding="utf-8"))
        assert "CastReport(elements=5" in capsys.readouterr().out


def check_claims(names: dict[str, Any], text: str) -> None:
    """The README's comments say what its lines give."""
    claims = re.findall(r"^(\w) = .*#.*?(\[[^\]]*\])$", text, re.MULTILINE)
    assert {"y", "i"} <= {name for name, _ in claims}
    for name, claim in claims:
        wanted = [float(number) for number in claim.strip("[]").split(",")]
        assert np.array_equal(names[name].astype(np.float64), wanted, equal_nan=True), (name, names[name])


# ---- the site ----


def test_the_layers_are_those_that_the_tests_enforce() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d) \| `(\w+)` \| \S", page, re.MULTILINE)
    assert listed == [(str(number), folder) for number, row in enumerate(LAYERS, 1) for folder in row]


def test_every_public_name_has_its_place_in_the_api() -> None:
    """`.ci/run` builds the site."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\.\. (?:auto\w+|py:\w+):: (?:gpucast\.)?(\w+)", page, re.MULTILINE))
    assert set(gpucast.__all__) <= described
