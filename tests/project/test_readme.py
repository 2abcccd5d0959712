# SPDX-License-Identifier: Apache-2.0
"""The README tells the truth: its tables are the code's, its links lead somewhere. (Its example: see test_docs.)"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("cuda", "extras"), [(None, []), ((11, 8), []), ((12, 4), ["cuda12"]), ((13, 0), ["cuda13"]), ((14, 1), ["cuda13"])]
)
def test_cuda_is_installed_only_where_a_driver_can_run_it(
    cuda: tuple[int, int] | None, extras: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import start

    (tmp_path / "gpucast" / "compile").mkdir(parents=True)
    found = f"type('Driver', (), {{'cuda': {cuda}}})" if cuda else "None"
    module = Path("gpucast", "compile", "nvidia.py")
    text = (ROOT / module).read_text(encoding="utf-8")
    (tmp_path / module).write_text(f"{text}\n\ndef find():\n    return {found}\n", encoding="utf-8")
    monkeypatch.setattr(start, "ROOT", tmp_path)
    assert start.cuda_extra() == extras


@pytest.mark.parametrize(
    ("commands", "is_there"), [({"gcc", "g++"}, True), ({"clang", "clang++"}, True), ({"gcc"}, False), (set(), False)]
)
def test_a_compiler_is_installed_where_there_is_none(
    commands: set[str], is_there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import start

    for command in commands:
        (tmp_path / command).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert start.has_compiler() == is_there
    # The installation gets its command.
    ran: list[tuple[list[str], dict[str, str]]] = []
    found = "/somewhere/ziglang/__init__.py"
    monkeypatch.setattr(start, "environment", lambda folder: "python")
    monkeypatch.setattr(start, "cuda_extra", list)
    monkeypatch.setattr(
        start.subprocess, "run",
        lambda command, env=None, **_: ran.append((command, env or {})) or SimpleNamespace(returncode=0, stdout=found),
    )  # fmt: skip
    assert start.main(["demo"]) == 0
    installed = [command[-1] for command, _ in ran if "install" in command]
    assert installed == [*([] if is_there else ["ziglang>=0.13"]), f"{ROOT}[demo]"]
    (compiler,) = {env.get("CXX") for command, env in ran if command[-1] == f"{ROOT}[demo]"}
    assert compiler == (None if is_there else "python /somewhere/ziglang/__main__.py c++")


def test_start_needs_no_package() -> None:
    """Not even gpucast, which it installs."""
    text = "import sys; sys.path.insert(0, sys.argv[1]); import start; start.cuda_extra(); start.has_compiler()"
    subprocess.run([sys.executable, "-I", "-S", "-c", text, str(ROOT / "bench")], check=True)
