# SPDX-License-Identifier: Apache-2.0
"""NVRTC's second library, which holds the built-in functions of CUDA C++.

NVRTC opens it by its bare name when it first compiles. If NVRTC has no RPATH, as in the wheel 13.0.88, the loader finds
that name only if the library is already loaded. This module loads it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: The CUDA majors that are served, newest first.
MAJORS = (13, 12)
_WINDOWS = sys.platform == "win32"
#: Under a folder of Python packages: where the wheels nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12 put the library.
_WHEELS = {
    13: "nvidia/cu13/bin/x86_64" if _WINDOWS else "nvidia/cu13/lib",
    12: "nvidia/cuda_nvrtc/bin" if _WINDOWS else "nvidia/cuda_nvrtc/lib",
}


def file_name(major: int) -> str:
    return f"nvrtc64_{major}0_0.dll" if _WINDOWS else f"libnvrtc.so.{major}"


def builtins_name(version: tuple[int, int]) -> str:
    """The library without which an NVRTC of that version compiles nothing. It opens this one by name."""
    major, minor = version
    return f"nvrtc-builtins64_{major}{minor}.dll" if _WINDOWS else f"libnvrtc-builtins.so.{major}.{minor}"


def package_folders() -> Iterator[str]:
    """The folders of Python packages, without the current folder, which ``python -c`` and ``python -m`` have in
    `sys.path`: its files may be anybody's."""
    try:
        here = os.path.realpath(os.curdir)
    except FileNotFoundError:
        # It has been removed.
        here = ""
    for entry in sys.path:
        if os.path.isabs(entry) and os.path.realpath(entry) != here:
            yield entry


def wheel_folders(major: int) -> Iterator[str]:
    """Where the wheel of a CUDA major would have put its libraries."""
    for folder in package_folders():
        yield os.path.join(folder, _WHEELS[major])


def in_wheels(major: int) -> Iterator[str]:
    """Where the wheel of a CUDA major would have put NVRTC."""
    for folder in wheel_folders(major):
        yield os.path.join(folder, file_name(major))


def package(version: tuple[int, int]) -> str:
    """The package to install with pip for an NVRTC of that version."""
    major, minor = version
    return f"nvidia-cuda-nvrtc{'-cu12' if major == 12 else ''}=={major}.{minor}.*"


#: dlinfo's request for the link_map of a library.
_RTLD_DI_LINKMAP = 2
#: The longest path of Windows.
_MAX_PATH = 1 << 15


class _LinkMap(ctypes.Structure):
    """The start of the C library's link_map."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


@dataclass(frozen=True)
class Builtins:
    """The result of loading the builtins library of an NVRTC: of that `version`, loaded from the file `nvrtc`."""

    version: tuple[int, int]
    nvrtc: str
    #: The builtins library that was loaded, or None.
    path: str | None
    #: Why none was loaded, or "".
    problem: str

    def missing(self) -> str:
        """The error message of an NVRTC that cannot use it, with the command that repairs it."""
        reason = self.problem or f"{self.path} is damaged or of another version"
        return (
            f"compile: NVRTC {'.'.join(map(str, self.version))} ({self.nvrtc}) cannot use "
            f"{builtins_name(self.version)}, without which it compiles nothing: {reason}; "
            f"run: pip install --force-reinstall '{package(self.version)}'"
        )


def load(library: Any, version: tuple[int, int]) -> Builtins:
    """Load the builtins library of a loaded NVRTC from the same folder or from a wheel.

    A missing library is no failure: the loader may still find one.
    """
    nvrtc = path_of(library)
    problem = ""
    for folder in _folders(nvrtc, version[0]):
        # Never the "alt" library, which belongs to another NVRTC.
        path = os.path.join(folder, builtins_name(version))
        if os.path.isfile(path):
            try:
                ctypes.CDLL(path)
            except OSError as error:
                problem = problem or f"it cannot be loaded ({error})"
            else:
                return Builtins(version, nvrtc, path, "")
    return Builtins(version, nvrtc, None, problem or f"it is not in {os.path.dirname(nvrtc) or 'any known folder'}")


def path_of(library: Any) -> str:
    """The file that a library was loaded from, whoever loaded it; "" if that is not known."""
    handle = ctypes.c_void_p(library._handle)
    if sys.platform == "win32":
        name = ctypes.create_unicode_buffer(_MAX_PATH)
        ctypes.WinDLL("kernel32").GetModuleFileNameW(handle, name, len(name))
        return name.value
    found = ctypes.POINTER(_LinkMap)()
    if ctypes.CDLL(None).dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(found)):
        return ""
    return os.fsdecode(found.contents.name)


def _folders(nvrtc: str, major: int) -> Iterator[str]:
    """The folder of NVRTC, the folder of the file behind it if it is a link, then the folders of the wheels."""
    if nvrtc:
        yield os.path.dirname(nvrtc)
        yield os.path.dirname(os.path.realpath(nvrtc))
    if major in MAJORS:
        yield from wheel_folders(major)
