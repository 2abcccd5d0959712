# SPDX-License-Identifier: Apache-2.0
"""Runs a script of the tests in a process that AddressSanitizer and UndefinedBehaviorSanitizer watch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpucast.parity import host_build


def sanitizer() -> str:
    """The library that must be in the process before what it watches."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "f.cpp"), Path(folder, "f.so")
        source.write_text("int f(int* p) { return *p; }")
        flags = host_build.flags(optimize=False, sanitize=True)
        subprocess.run([*host_build.compiler(), *flags, str(source), "-o", str(out)], check=True)
        # That of ziglang takes the option and checks nothing.
        if b"__asan_" not in out.read_bytes():
            pytest.skip("this C++ compiler has no AddressSanitizer; g++ and clang++ have")
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so", "libclang_rt.asan-aarch64.so"):
        query = [*host_build.compiler(), f"-print-file-name={name}"]
        path = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        if os.path.isabs(path) and os.path.exists(path):
            return path
    pytest.skip("this C++ compiler has no shared AddressSanitizer library; g++ has (package libasan or gcc)")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder; it ends with the code 99 where a sanitizer finds something."""
    path = Path(__file__).with_name(script)
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer(),
        # Python leaks at exit by design; a report ends the process with the code that the tests look for.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "PYTHONPATH": os.pathsep.join([str(path.parent), *sys.path]),
    }
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
