# SPDX-License-Identifier: Apache-2.0
"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on the host build."""

from __future__ import annotations

from under_sanitizers import run

_SCRIPT = "sanitized_kernels.py"


def test_no_access_outside_and_nothing_undefined() -> None:
    result = run(_SCRIPT)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert "kernels clean" in result.stdout


def test_an_overrun_is_caught() -> None:
    result = run(_SCRIPT, "overrun")
    assert result.returncode == 99, result.stdout + result.stderr[-4000:]
    assert "heap-buffer-overflow" in result.stderr
