# SPDX-License-Identifier: Apache-2.0
"""The README tells the truth: its links lead somewhere, its commands are real. (Its examples: see test_docs.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_what_the_code_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import readme

    for page, text in readme.rendered().items():
        assert page.read_text(encoding="utf-8") == text, "run python -m bench.readme"


def test_whether_a_gpu_has_run_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import readme

    nothing = readme.gpu_section().startswith("No run on a GPU is recorded yet")
    assert ("**No run on a GPU is recorded yet" in README) == nothing


def test_the_first_screen_has_no_table_and_no_wide_code() -> None:
    assert README.index("## Read on") < README.index("\n|")
    for block in re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        assert max(map(len, block.splitlines())) <= 80, block


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_the_two_commands_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import start

    jobs = re.findall(r"^python3 bench/start\.py (\w+)", README, re.MULTILINE)
    assert sorted(jobs) == sorted(start.JOBS)
    for extra, command in start.JOBS.values():
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(Path(part).exists() for part in command if part.startswith(str(ROOT)))
    assert start.main([]) == 2 and start.main(["nonsense"]) == 2
