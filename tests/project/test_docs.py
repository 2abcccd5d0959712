# SPDX-License-Identifier: Apache-2.0
"""The documentation tells the truth: every snippet runs, every table holds."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from gpucast.core import extension
from gpucast.core.errors import SlowHostWarning
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
def test_snippets(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Where pages save their files.
    monkeypatch.chdir(tmp_path)
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
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| \S", page, re.MULTILINE)
    assert listed == [(str(number), folder) for number, row in enumerate(LAYERS, 1) for folder in row]


def test_every_public_name_has_its_place_in_the_api() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^### gpucast\.(\w+)", page, re.MULTILINE))
    assert set(gpucast.__all__) <= described


def test_pages_are_plain_markdown_and_few() -> None:
    """GitHub shows them whole: no roles or directives of Sphinx. `.ci/run` builds the site from the same pages."""
    wrong = [
        f"{name_of(page)}: {found}"
        for page in PAGES
        for found in re.findall(r"^ *(?:```|:::)\{.*|\{[\w:-]+\}`.*", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not wrong, "\n".join(wrong)
    assert len(PAGES) <= 23, "the README and twenty-two pages; another one takes the place of one that is there"


def anchors(page: Path) -> set[str]:
    """The ends of the addresses of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for title in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        count = sum(one == slug for one in found)
        found.append(slug)
        if count:
            found.append(f"{slug}-{count}")
    return set(found)


HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
#: A link to a file, a heading, or a heading of a file.
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
TOP = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]


def test_images_and_source_packages_have_the_files_that_tests_read() -> None:
    read = {path.relative_to(ROOT).parts[0] for path in (*TOP, ROOT / "Dockerfile", ROOT / ".ci" / "run")}
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packed = re.search(r"sdist]\ninclude = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert packed and read <= admitted and read <= set(re.findall(r'"/([^"]+)"', packed[1]))


@pytest.mark.parametrize("page", TOP, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    wrong = []
    for file, heading in LINK.findall(text):
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            wrong.append(file)
        elif heading and heading not in anchors(target):
            wrong.append(f"{file}#{heading}")
    assert not wrong


def test_training_in_pytorch_is_three_clicks_away() -> None:
    """From the README by way of the page of PyTorch."""
    clicks = [(ROOT / "README.md", "docs/torch.md"), (DOCS / "torch.md", "#train"), (DOCS / "torch.md", "mixed.md")]
    for page, target in clicks:
        assert f"]({target})" in page.read_text(encoding="utf-8"), (page, target)


# ---- the README: its links lead somewhere, its commands are real ----

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_parts_of_pages_are_what_the_code_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    pages = importlib.import_module("pages")
    wrong = [name_of(page) for page, text in pages.rendered().items() if page.read_text(encoding="utf-8") != text]
    assert not wrong, f"run python docs/pages.py: {', '.join(wrong)}"


def test_whether_a_gpu_has_run_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import readme

    nothing = readme.gpu_section().startswith("No GPU has run gpucast yet")
    assert ("**No GPU has run gpucast yet" in README) == nothing


def test_the_first_screens_have_no_table_and_no_wide_code() -> None:
    assert README.index("## Start") < README.index("\n|")
    for block in re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        assert max(map(len, block.splitlines())) <= 80, block


def test_the_two_commands_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import start

    jobs = re.findall(r"^python3 bench/start\.py (\w+)", README, re.MULTILINE)
    assert sorted(jobs) == sorted(start.JOBS)
    for extra, command in start.JOBS.values():
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(Path(part).exists() for part in command if part.startswith(str(ROOT)))
    assert start.main([]) == 2 and start.main(["nonsense"]) == 2
    # Warnings of pip are not the first thing that is read.
    assert start._PIP.count("--quiet") == 2


# ---- pages, comments and docstrings name modules and files that there are ----

FOLDERS = ("gpucast", "kernels", "docs", "bench", "examples", "tests")
ENDINGS = ("py", "md", "sh", "c", "h", "hpp", "cu", "cuh")
#: The log of changes names what there was, and tests of the project make names up.
OTHERS = (ROOT / "CHANGELOG.md", ROOT / "tests" / "project")

NAME = re.compile(r"(?<![\w./-])gpucast(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\.(?:{'|'.join(ENDINGS)})\b")
#: Keys in the metadata of safetensors files, which only look like names: "gpucast.dtype.weights".
KEY = re.compile(r"gpucast\.(?:dtype|shape|quantized)(?:\.\w+)?")


def texts() -> Iterator[Path]:
    yield from (ROOT / "Dockerfile", ROOT / ".ci" / "run")
    yield from (path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yaml"))
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix[1:] in ENDINGS)


TEXTS = [path for path in texts() if not any(path.is_relative_to(other) for other in OTHERS)]


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or from one through attributes to anything."""
    # To import these two would run the command, and set up the package anew.
    if KEY.fullmatch(name) or name in ("gpucast.__main__", "gpucast.__init__"):
        return True
    first, *parts = name.split(".")
    found, path = importlib.import_module(first), ROOT / first
    for count, part in enumerate(parts, 2):
        path /= part
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            try:
                found = importlib.import_module(".".join([first, *parts][:count]))
            except ImportError:  # It needs a library that is not installed: nothing more can be said.
                return True
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return False
    return True


def test_names_and_files_are_there() -> None:
    wrong = []
    for path in TEXTS:
        place, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        wrong += [f"{place}: {name}" for name in sorted(set(NAME.findall(text))) if not is_there(name)]
        wrong += [f"{place}: {file}" for file in sorted(set(FILE.findall(text))) if not (ROOT / file).exists()]
    assert not wrong, "\n".join(wrong)


def test_the_columns_of_the_table_of_types_are_told() -> None:
    """One line for each argument of `gpucast.DType`, in their order, with the value of a type."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w[^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    row = gpucast.dtype("FLOAT8E4M3FN")
    columns = [str(getattr(row, one.name)) for one in dataclasses.fields(row) if one.init]
    assert [value.strip("`") for name, _, value in lines if name != "Column"] == columns
