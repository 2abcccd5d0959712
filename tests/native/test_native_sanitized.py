# SPDX-License-Identifier: Apache-2.0
"""The host's library under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from under_sanitizers import run

_SCRIPT = "sanitized_native.py"


def test_no_access_outside_and_nothing_undefined() -> None:
    result = run(_SCRIPT)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert "functions clean" in result.stdout


def test_an_overrun_is_caught() -> None:
    result = run(_SCRIPT, "overrun")
    assert result.returncode == 99, result.stdout + result.stderr[-4000:]
    assert "heap-buffer-overflow" in result.stderr
