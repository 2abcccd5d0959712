# SPDX-License-Identifier: Apache-2.0
"""The library of AddressSanitizer or ThreadSanitizer, which must be in a process before what it watches."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpucast.parity import host_build


def library() -> str:
    """The path of AddressSanitizer's; skips the test where this machine's C++ compiler has none."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "f.cpp"), Path(folder, "f.so")
        source.write_text("int f(int* p) { return *p; }")
        flags = host_build.flags(optimize=False, sanitize=True)
        subprocess.run([*host_build.compiler(), *flags, str(source), "-o", str(out)], check=True)
        # That of ziglang takes the option and checks nothing.
        if b"__asan_" not in out.read_bytes():
            pytest.skip("this C++ compiler has no AddressSanitizer; g++ and clang++ have")
    path = _path("libasan.so", "libclang_rt.asan-x86_64.so", "libclang_rt.asan-aarch64.so")
    return path or pytest.skip(
        "this C++ compiler has no shared AddressSanitizer library; g++ has (package libasan or gcc)"
    )


def thread_library() -> str:
    """The same of ThreadSanitizer's."""
    path = _path("libtsan.so", "libclang_rt.tsan-x86_64.so", "libclang_rt.tsan-aarch64.so")
    return path or pytest.skip(
        "this C++ compiler has no shared ThreadSanitizer library; g++ has (package libtsan or gcc)"
    )


def _path(*names: str) -> str:
    """Where the compiler has the first of these that it has; "" for nowhere."""
    for name in names:
        query = [*host_build.compiler(), f"-print-file-name={name}"]
        path = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        if os.path.isabs(path) and os.path.exists(path):
            return path
    return ""
