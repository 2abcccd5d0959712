# SPDX-License-Identifier: Apache-2.0
"""docs/extending.md is right: its row is added to a copy of the package, and its commands run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: Not run: every installation runs it, and it takes a minute or two.
BUILD = "python -m gpucast.host.build"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with the row of the page, and with the module that was built without it."""
    for folder in ("gpucast", "kernels"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (row,) = re.findall(r"^```text\n(.*\n)```$", PAGE, re.MULTILINE)
    table = tmp_path / "gpucast" / "core" / "dtypes" / "table.py"
    text = table.read_text(encoding="utf-8")
    assert text.count('\n""")\n') == 1
    table.write_text(text.replace('\n""")\n', f'\n{row}""")\n'), encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, command in (("gpucast", "-m gpucast"), ("python", "")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n', encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    return tmp_path


def test_adding_a_type_is_one_row(copy: Path) -> None:
    section = PAGE[PAGE.index("### Add one") : PAGE.index("## A rule belongs")]
    (block,) = re.findall(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    environment = os.environ | {"PATH": f"{copy / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(copy)}
    steps = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE)
    assert steps[-1] == (BUILD, "") and len(steps) == 5
    for command, wanted in steps[:-1]:
        shell = ["sh", "-c", command]
        done = subprocess.run(shell, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        without_times = [re.sub(r"in \d+ s,", "in s,", text) for text in (done.stdout, wanted)]
        assert (done.returncode, without_times[0]) == (0, without_times[1]), (command, done.stderr)
