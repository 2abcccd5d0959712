# SPDX-License-Identifier: Apache-2.0
"""Runs a process with a time limit, shows and logs its output, and ends it with all processes that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Seconds from the first signal (SIGTERM) to the last (SIGKILL).
GRACE = 10.0


@dataclass(frozen=True)
class Ended:
    #: The exit code, negative for a signal; None where the time ran out.
    code: int | None
    seconds: float


def limited(
    command: Sequence[str],
    log: Path,
    seconds: float,
    environment: Mapping[str, str],
    folder: Path,
    grace: float = GRACE,
) -> Ended:
    """Run a command; what it prints goes to stdout and to the end of `log`. An exception here ends it, too."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A process group of its own, so that its child processes can be ended with it.
        start_new_session=True,
    )
    words = threading.Thread(target=_copy, args=(process, log), daemon=True)
    words.start()
    code = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
    finally:
        _end(process, grace)
        # A process that left the group may keep the pipe open.
        words.join(2.0)
    return Ended(code, time.monotonic() - begin)


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """End the group: first its leader by SIGTERM if it still runs, then all that are left."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _copy(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.stdout is not None
    with process.stdout, log.open("ab", buffering=0) as file:
        for line in process.stdout:
            file.write(line)
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
