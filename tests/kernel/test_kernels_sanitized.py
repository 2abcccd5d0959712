# SPDX-License-Identifier: Apache-2.0
"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on the host build, in a process of their own."""

from __future__ import annotations

from sanitizer import check, check_found, run


def test_no_access_outside_and_nothing_undefined() -> None:
    check(run("sanitized_kernels.py"), "kernels clean")


def test_an_overrun_is_caught() -> None:
    check_found(run("sanitized_kernels.py", "overrun"), "heap-buffer-overflow")
