# SPDX-License-Identifier: Apache-2.0
"""Texts of `gpucast.device_function`, built for the host and called with arrays."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from gpucast.parity import host_build

#: What CUDA has built in and the host has not.
_SHIM = """
#include <cstring>
template <class T, class S> T bits(S value) { T result; std::memcpy(&result, &value, sizeof(T)); return result; }
#define __float_as_uint bits<unsigned>
#define __uint_as_float bits<float>
#define __double_as_longlong bits<long long>
#define __longlong_as_double bits<double>
"""


def build(text: str, folder: Path) -> ctypes.CDLL:
    """A library with the C functions of a text, which may use what CUDA has built in."""
    path, library = folder / "functions.cpp", folder / "functions.so"
    path.write_text(host_build.shim() + _SHIM + text)
    command = [*host_build.compiler(), "-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-o", str(library), str(path)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))
