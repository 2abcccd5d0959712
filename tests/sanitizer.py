# SPDX-License-Identifier: Apache-2.0
"""Scripts under AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer, in processes of their own: its
library must be in a process before what it watches."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpucast.parity import host_build

SCRIPTS = Path(__file__).parent


def run(script: str, *arguments: str, watched_by: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder with a sanitizer's library, else those of both for memory, and more variables; it
    ends with the code 99 where one finds something."""
    environment = {
        **os.environ,
        "LD_PRELOAD": watched_by or library(),
        # Python leaks at exit by design; a report ends the process with the code that tests look for.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "exitcode=99",
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path]),
        # Some loops of the module are missing, and the reference stands in.
        "PYTHONWARNINGS": "ignore",
        **more,
    }
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check(result: subprocess.CompletedProcess[str], says: str) -> None:
    """Nothing was found, and the script came to its end."""
    assert result.returncode == 0 and says in result.stdout, result.stdout + result.stderr[-4000:]


def check_found(result: subprocess.CompletedProcess[str], says: str) -> None:
    """A sanitizer found what was planted."""
    assert result.returncode == 99 and says in result.stderr, result.stdout + result.stderr[-4000:]


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
