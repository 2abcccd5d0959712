# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of this folder, which fork and take cases as JSON, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run(program: str, cases: Any, **environment: str) -> Any:
    """What the program writes about the cases."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / f"{program}.py")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)]),
            "OPENBLAS_NUM_THREADS": "1",
        }
        | environment,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return json.loads(ended.stdout)


def noted(kind: str, **figures: int) -> None:
    """Print the figures of a run, for the table in README.md (shown with ``-rA`` or ``-s``)."""
    print(f"{kind}:", ", ".join(f"{count:,} {name}" for name, count in figures.items()))
