# SPDX-License-Identifier: Apache-2.0
"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on the host build, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpucast.parity import host_build

SCRIPT = Path(__file__).parents[1] / "sanitized_kernels.py"


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


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with both sanitizers; it ends with the code 99 where one finds something."""
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer(),
        # Python leaks at exit by design; a report ends the process with the code that the tests look for.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path]),
    }
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_no_access_outside_and_nothing_undefined() -> None:
    result = run()
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    assert "kernels clean" in result.stdout


def test_an_overrun_is_caught() -> None:
    result = run("overrun")
    assert result.returncode == 99, result.stdout + result.stderr[-4000:]
    assert "heap-buffer-overflow" in result.stderr
