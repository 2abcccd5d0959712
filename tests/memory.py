# SPDX-License-Identifier: Apache-2.0
"""Memory that a call takes beside its arguments and its result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def extra_bytes(call: Callable[[], object]) -> int:
    """The most bytes of Python's and NumPy's allocators that a call holds at a time, as traced. The least of three
    calls: threads of the test runner, and tables that grow once, are traced too."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
