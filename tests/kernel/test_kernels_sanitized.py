# SPDX-License-Identifier: Apache-2.0
"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on the host build, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sanitizer

SCRIPT = Path(__file__).parents[1] / "sanitized_kernels.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with both sanitizers; it ends with the code 99 where one finds something."""
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer.library(),
        # Python leaks at exit by design; a report ends the process with the code that the tests look for.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path]),
    }
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_no_access_outside_and_nothing_undefined() -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert "kernels clean" in result.stdout


def test_an_overrun_is_caught() -> None:
    result = run("overrun")
    assert result.returncode == 99, result.stdout + result.stderr[-4000:]
    assert "heap-buffer-overflow" in result.stderr
