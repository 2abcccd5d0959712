# SPDX-License-Identifier: Apache-2.0
"""Locks on open files, which the system lifts when a process ends, in whatever way."""

from __future__ import annotations

from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def lock(file: Any, wait: bool) -> bool:
    """Whether the file could be locked. True as well where the file system knows no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
