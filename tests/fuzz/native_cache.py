# SPDX-License-Identifier: Apache-2.0
"""Fills a cache with the host's library."""

from __future__ import annotations

import threading

from gpucast.compile.cache import Cache
from gpucast.cpu.native.library import THREAD, NativeLibrary


def fill(cache: Cache) -> None:
    """Compile the library, and wait for it. AssertionError where it cannot be compiled and loaded."""
    made = NativeLibrary(cache, worth=0)
    made.library()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()
    assert made.library() is not None
