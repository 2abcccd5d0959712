# SPDX-License-Identifier: Apache-2.0
"""examples/digits.py, the demonstration: it runs, what it says holds, and its page is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_demonstration(tmp_path: Path) -> None:
    for package in ("safetensors", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--out", str(tmp_path)]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "4. 0 of 48,100 values differ from the reference" in run.stdout
    rows = re.findall(r"^  (\w+) +[\d,]+ +([\d.]+)% +([\d.]+)%$", run.stdout, re.MULTILINE)
    accuracy = {name: float(share) for name, share, _ in rows}
    assert len(accuracy) == 13
    assert accuracy["INT4"] < 20 < accuracy["FLOAT"] - 5
    # Scales bring back what a plain cast to as many bits loses.
    assert accuracy["mxfp4"] > accuracy["FLOAT4E2M1"] + 5 and accuracy["int4_32"] > accuracy["FLOAT"] - 3
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert run.stdout.endswith(f"{tmp_path / 'demo.html'}\n")
    assert page.count("<img ") == 2 and page.count('class="bar') == 13 and "0 of 48,100" in page
    assert "http" not in page.replace("http-equiv", "")
