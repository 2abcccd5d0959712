# SPDX-License-Identifier: Apache-2.0
"""Finds a C or C++ compiler on this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from gpucast.compile.nvrtc_files import package_folders

Language = Literal["c", "c++"]

#: The environment variable, the commands that are searched for, and the ziglang wheel's command.
_COMMANDS = {"c++": ("CXX", ("g++", "clang++", "c++"), "c++"), "c": ("CC", ("gcc", "clang", "cc"), "cc")}


class CompilerMissing(RuntimeError):
    """No compiler was found. The message says how to get one."""


def find(language: Language, caller: str) -> list[str]:
    """The command of a C++17 or C11 compiler: $CXX or $CC, one from the path, or the one in the ziglang wheel.

    CompilerMissing, which begins with `caller`, where there is none.
    """
    variable, names, of_zig = _COMMANDS[language]
    chosen = os.environ.get(variable)
    if chosen:
        command = []
        # What cannot be split has a quotation without an end.
        with contextlib.suppress(ValueError):
            command = shlex.split(chosen)
        if not command or shutil.which(command[0]) is None:
            wanted = f"set it to a {language.upper()} compiler or unset it"
            raise CompilerMissing(f"{caller}: {variable}={chosen!r} is not a command; {wanted}")
        return command
    for name in names:
        if shutil.which(name) is not None:
            return [name]
    for folder in package_folders():
        # By its path: "-m ziglang" would first look in the current folder, whose files may be anybody's.
        script = os.path.join(folder, "ziglang", "__main__.py")
        if os.path.isfile(script):
            return [sys.executable, script, of_zig]
    raise CompilerMissing(
        f"{caller}: no {language.upper()} compiler; install {names[0]} or {names[1]}, set {variable}, or run: "
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
