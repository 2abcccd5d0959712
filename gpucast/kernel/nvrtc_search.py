# SPDX-License-Identifier: Apache-2.0
"""Finds NVRTC on this machine. A copy in a wheel or a folder is found without loading it, because loading is slow."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import nvidia, nvrtc
from gpucast.kernel.nvrtc import Nvrtc
from gpucast.kernel.nvrtc_builtins import MAJORS, file_name, in_wheels

_WINDOWS = sys.platform == "win32"
#: Under the root of a CUDA toolkit.
_TOOLKIT = ("bin/x64", "bin") if _WINDOWS else ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


@dataclass(frozen=True)
class NvrtcCopy:
    """A copy of NVRTC: either the `path` of one that is not loaded yet, or a `loaded` one, whose path is not known."""

    path: str | None
    loaded: Nvrtc | None = None


def find() -> NvrtcCopy:
    """The copy to use: one that is already loaded, else one from the wheels, the loader's path, or CUDA_PATH.

    In each place the newest CUDA major comes first, but none newer than the driver, which would refuse its cubins.
    DeviceUnavailable, with the command that installs one, where there is none.
    """
    version = nvidia.cuda_version()
    majors = [major for major in MAJORS if version is None or major <= version[0]]
    for major in majors:
        library = _already_loaded(file_name(major))
        if library is not None:
            return NvrtcCopy(None, Nvrtc(library))
    for path in _files(majors):
        if os.path.isfile(path):
            return NvrtcCopy(path)
    for major in majors:
        with contextlib.suppress(OSError):
            return NvrtcCopy(None, nvrtc.load(file_name(major)))
    for path in _toolkit_files(majors):
        if os.path.isfile(path):
            return NvrtcCopy(path)
    raise DeviceUnavailable(_missing(version))


def _files(majors: list[int]) -> Iterator[str]:
    """Full paths that come before the loader's cache: wheels, Python's own prefix (conda), LD_LIBRARY_PATH."""
    for major in majors:
        yield from in_wheels(major)
    folders = [os.path.join(sys.prefix, "Library", "bin") if _WINDOWS else os.path.join(sys.prefix, "lib")]
    folders += [] if _WINDOWS else filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    for major in majors:
        for folder in folders:
            yield os.path.join(folder, file_name(major))


def _toolkit_files(majors: list[int]) -> Iterator[str]:
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), None if _WINDOWS else "/usr/local/cuda"]
    for major in majors:
        for root in filter(None, roots):
            for folder in _TOOLKIT:
                yield os.path.join(root, folder, file_name(major))


def _already_loaded(name: str) -> ctypes.CDLL | None:
    """The library of that name that someone else, such as CuPy or torch, has loaded into this process."""
    if sys.platform == "win32":
        handle = ctypes.WinDLL("kernel32").GetModuleHandleW(name)
        return ctypes.CDLL(name, handle=handle) if handle else None
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def _missing(version: tuple[int, int] | None) -> str:
    reason = "NVRTC, the compiler of the CUDA kernels, was not found"
    if version is not None:
        runs = f"this driver, which runs CUDA {version[0]}.{version[1]}"
        if version[0] < min(MAJORS):
            return f"compile: {runs}, is too old; install a driver for CUDA {min(MAJORS)} or newer"
        too_new = [major for major in MAJORS if major > version[0]]
        present = [path for path in (*_files(too_new), *_toolkit_files(too_new)) if os.path.isfile(path)]
        if present:
            reason = f"{present[0]} is too new for {runs}"
    return f"compile: {reason}; run: pip install 'gpucast[{_extra(version)}]'"


def _extra(version: tuple[int, int] | None) -> str:
    """The extra to install: the one of the installed CuPy, else the one for the driver, else the one for any driver."""
    import importlib.metadata  # slow, and needed for this message only

    for extra, package in (("cuda12", "cupy-cuda12x"), ("cuda13", "cupy-cuda13x")):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return extra
    return nvidia.extra(version)
