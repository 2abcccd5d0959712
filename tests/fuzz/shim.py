# SPDX-License-Identifier: Apache-2.0
"""Builds the shim of faults (`shim.c`), and controls it in a process that has it preloaded."""

from __future__ import annotations

import ctypes
import errno
import shutil
import signal
import subprocess
from pathlib import Path

SIGNAL, SHORT = 1000, 2000
#: What can happen at a call, by name: an error number, a short count, or a signal to the process.
HOWS = {
    **{name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EACCES", "EINTR")},
    "short": SHORT,
    **{name: SIGNAL + getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT")},
}
#: The calls that can fall short.
_MOVING = ("read", "write", "pread64", "pwrite64", "readv", "writev", "preadv64v2", "pwritev64v2")
#: The calls that change nothing: to be killed before one of them is to be killed before the next one that does.
_LOOKING = (
    *("read", "pread64", "readv", "preadv64v2", "stat64", "lstat64", "fstatat64", "fstat64", "statvfs64", "access"),
    *("faccessat", "readlink", "readlinkat", "lseek64", "mmap64", "opendir", "fdopendir", "readdir64"),
)


def build(folder: Path) -> Path | None:
    """The shim as a shared library in the folder; None where there is no compiler, or no GNU C library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return None
    made = folder / "shim.so"
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(made)]
    subprocess.run([*command, str(Path(__file__).with_name("shim.c")), "-ldl"], check=True)
    return made


class Shim:
    """The shim that this process has preloaded. AttributeError where it has none."""

    def __init__(self) -> None:
        functions = ctypes.CDLL(None)
        self._arm, self._disarm, self._name = functions.fault_arm, functions.fault_disarm, functions.fault_name
        self._arm.argtypes, self._arm.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_int], None
        self._disarm.restype = ctypes.c_long
        self._name.argtypes, self._name.restype = [ctypes.c_long], ctypes.c_char_p

    def arm(self, how: str = "EIO", first: int = 0, last: int = -1) -> None:
        """From now on it counts; what `how` names happens at the calls from `first` to `last`."""
        self._arm(first, last, HOWS[how])

    def disarm(self) -> list[str]:
        """The names of the calls that were counted."""
        return [self._name(number).decode() for number in range(self._disarm())]


def numbers(names: list[str], how: str) -> list[int]:
    """The calls at which that can happen."""
    if how == "SIGKILL":
        return [number for number, name in enumerate(names) if name not in _LOOKING]
    return [number for number, name in enumerate(names) if how != "short" or name in _MOVING]
