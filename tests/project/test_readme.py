# SPDX-License-Identifier: Apache-2.0
"""The README tells the truth: its tables are the code's, its links lead somewhere. (Its example: see test_docs.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_what_the_code_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import readme

    assert readme.rendered(README) == README, "run python -m bench.readme"


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
