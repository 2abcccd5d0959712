# SPDX-License-Identifier: Apache-2.0
"""Whether processes have ended, and how long tests wait for what would otherwise never end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds after which what hangs is a failure; no test that passes comes near them on the busiest machine.
HANGS = 300


def is_running(pid: int) -> bool:
    try:
        # What has ended stays there until its parent, which is not ours, has looked.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def have_ended(pids: Sequence[int]) -> bool:
    """Whether processes have ended, or end now that they have been told to; else they are ended here."""
    hangs = time.monotonic() + HANGS
    while any(map(is_running, pids)):
        if time.monotonic() > hangs:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True
