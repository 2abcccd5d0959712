# SPDX-License-Identifier: Apache-2.0
"""Finds a C++ compiler on this machine; runs commands, such as compilers, that are ended with all their children as
soon as nobody waits for them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from gpucast.compile.nvrtc_builtins import package_folders

_VARIABLE, _COMMANDS = "CXX", ("g++", "clang++", "c++")


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


class CompilerMissing(RuntimeError):
    """No compiler was found. The message says how to get one."""


def find(caller: str) -> list[str]:
    """The command of a C++17 compiler: $CXX, one from the path, or the one in the ziglang wheel.

    CompilerMissing, which begins with `caller`, where there is none.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen:
        command = []
        # What cannot be split has a quotation without an end.
        with contextlib.suppress(ValueError):
            command = shlex.split(chosen)
        if not command or shutil.which(command[0]) is None:
            raise CompilerMissing(
                f"{caller}: {_VARIABLE}={chosen!r} is not a command; set it to a C++ compiler or unset it"
            )
        return command
    for name in _COMMANDS:
        if shutil.which(name) is not None:
            return [name]
    for folder in package_folders():
        # By its path: "-m ziglang" would first look in the current folder, whose files may be anybody's.
        script = os.path.join(folder, "ziglang", "__main__.py")
        if os.path.isfile(script):
            return [sys.executable, script, "c++"]
    raise CompilerMissing(
        f"{caller}: no C++ compiler; install {_COMMANDS[0]} or {_COMMANDS[1]}, set {_VARIABLE}, or run: "
        f"{shlex.quote(sys.executable)} -m pip install ziglang"
    )


def versions(command: Sequence[str]) -> tuple[str, ...]:
    """Identifies the version of a compiler, word by word of its command.

    For a word that names a program: its path, size and time of change. Asking the compiler for its version would take
    longer, and would never end if it hangs.
    """
    return tuple(map(_version, command))


def _version(word: str) -> str:
    # The path of a script need not be executable.
    found = shutil.which(word) or word
    try:
        status = os.stat(found) if os.path.isabs(found) else None
    except OSError:
        status = None
    if status is None:
        return ""
    return f"{os.path.realpath(found)} {status.st_size} {status.st_mtime_ns}"
