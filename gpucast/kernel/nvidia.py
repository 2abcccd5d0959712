# SPDX-License-Identifier: Apache-2.0
"""Reads the NVIDIA driver's report. It creates no context and needs no CuPy."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

#: CUdevice_attribute: the two halves of the compute capability.
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True)
class DriverInfo:
    """`cuda` is the newest CUDA version that the driver runs, such as (12, 4); `devices` describes each in a line."""

    cuda: tuple[int, int]
    devices: tuple[str, ...]
    #: Why there are no devices; empty when there are.
    problem: str = ""
    #: The compute capability of each device, such as (9, 0).
    capabilities: tuple[tuple[int, int], ...] = ()


def extra(cuda: tuple[int, int] | None) -> str:
    """The extra of gpucast to install for a driver that runs CUDA up to `cuda`; None: for any driver."""
    return "cuda13" if cuda is not None and cuda >= (13, 0) else "cuda12"


def find() -> DriverInfo | None:
    """The driver of this machine, or None when there is none."""
    library = _load()
    return None if library is None else describe(library)


def cuda_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver runs; None without a driver. Quick, because it initialises nothing."""
    library = _load()
    version = (0, 0) if library is None else _cuda_version(library)
    # The stub library of the CUDA toolkit reports version 0.
    return version if version > (0, 0) else None


def function(name: str) -> int:
    """The address of a function of the driver; 0 where there is none."""
    found = getattr(_load(), name, None)
    return ctypes.cast(found, ctypes.c_void_p).value or 0 if found is not None else 0


def _load() -> Any:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _cuda_version(library: Any) -> tuple[int, int]:
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def describe(library: Any) -> DriverInfo:
    """Ask a loaded driver library (CUDA driver API)."""
    cuda = _cuda_version(library)
    code = library.cuInit(0)
    count = ctypes.c_int()
    if code == 0:
        code = library.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return DriverInfo(cuda, (), f"the driver finds no usable device (CUDA error {code})")
    found = [_device(library, i) for i in range(count.value)]
    names, capabilities = tuple(name for name, _ in found), tuple(capability for _, capability in found)
    return DriverInfo(cuda, names, "" if found else "the driver finds no device", capabilities)


def _device(library: Any, index: int) -> tuple[str, tuple[int, int]]:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    text = f"cuda:{index} {name.value.decode(errors='replace')} (sm_{major.value}{minor.value})"
    return text, (major.value, minor.value)
