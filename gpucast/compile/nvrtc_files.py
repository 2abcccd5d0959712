# SPDX-License-Identifier: Apache-2.0
"""What the files of NVRTC are called, and where its wheels put them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

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
    """What pip installs for an NVRTC of that version."""
    major, minor = version
    return f"nvidia-cuda-nvrtc{'-cu12' if major == 12 else ''}=={major}.{minor}.*"
