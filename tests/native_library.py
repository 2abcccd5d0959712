# SPDX-License-Identifier: Apache-2.0
"""The host's compiled library in tests: whether it can be compiled here, and when its compiler is done."""

from __future__ import annotations

import threading

import pytest

from gpucast.compile import cxx
from gpucast.native.library import THREAD


def needs_compiler() -> None:
    """Skip where there is no compiler: the casts of NumPy's path are tried all the same."""
    try:
        cxx.find("test")
    except cxx.CompilerMissing:
        pytest.skip("no C++ compiler")


def finish() -> None:
    """Wait for the compilers that run."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
