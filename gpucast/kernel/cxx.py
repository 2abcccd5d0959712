# SPDX-License-Identifier: Apache-2.0
"""Finds a C++ compiler on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys

from gpucast.kernel.nvrtc_builtins import package_folders

_VARIABLE, _COMMANDS = "CXX", ("g++", "clang++", "c++")


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
