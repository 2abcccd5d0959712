# SPDX-License-Identifier: Apache-2.0
"""Runs commands, such as compilers, that are ended with all their children as soon as nobody waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any


class Commands:
    """Commands that run at the same time, each in a process group of its own.

    ``with Commands() as commands`` ends those that still run when the block is left. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False
        self._pid = os.getpid()

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(
        self, command: Sequence[str], *, timeout: float | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` with captured text and no input; `options` are those of ``subprocess.Popen``.

        An exception that ends the wait, such as Ctrl-C, ends the command and its children. SubprocessError after `end`;
        TimeoutExpired after so many seconds; OSError for a command that cannot be started.
        """
        with self._lock:
            if self._ended:
                raise subprocess.SubprocessError(f"{command[0]} is not started, for nobody waits for it any more")
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="replace", start_new_session=True, **options,
            )  # fmt: skip
            self._running.add(process)
        with process:
            try:
                output, errors = process.communicate(timeout=timeout)
            finally:
                with self._lock:
                    self._running.discard(process)
                _end(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def end(self) -> None:
        """End all commands with their children, and start no more."""
        if os.getpid() != self._pid:
            return  # A forked child: the commands are its parent's.
        with self._lock:
            self._ended = True
            for process in self._running:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.returncode is not None:
        return
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
