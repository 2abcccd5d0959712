# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the `gpucast` command imports its modules: one line and the exit code 130, as at any later time.

`gpucast/__init__.py` imports this module first, because Python imports the package before any module of the command.
Other programs see no change.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType


def _is_command() -> bool:
    """Whether this process is the command ``gpucast`` or ``python -m gpucast`` itself, not a worker of one."""
    first, given = sys.argv[0] if hasattr(sys, "argv") else "", sys.orig_argv
    if first not in given:
        return False
    # Until the package is imported, the option stands where the path of the module will be.
    name = given[given.index(first) + 1] if first == "-m" else os.path.splitext(os.path.basename(first))[0]
    return name == "gpucast"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"gpucast: interrupted\n")
    os._exit(130)


def imported() -> None:
    """End the import: from now on an interruption is an exception, which the command handles."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Only the main thread may set handlers; it is what the command imports in.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, _end)
