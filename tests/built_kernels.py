# SPDX-License-Identifier: Apache-2.0
"""What compilers have made of kernels is kept in build/kernels: for the other processes of a run, and for the next; so
is the list of all kernels.

Its names are hashes of the compiler's command and of the text, so that a change of either builds it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpucast.kernel.cache import Cache
from gpucast.kernel.compiler import Compiler
from gpucast.kernel.kernel import host_section
from gpucast.kernel.nvrtc import Nvrtc
from gpucast.kernel.nvrtc_search import NvrtcCopy
from gpucast.parity import host_build

_ROOT = Path(__file__).parents[1]
#: Ignored by git.
FOLDER = _ROOT / "build" / "kernels"
T = TypeVar("T")
#: The seconds after which a library that nobody has used goes.
_KEPT = 7 * 86400.0


def install(clean: bool) -> None:
    """From now on builds of this process look there first. `clean` it before others use it."""
    build = host_build._compile
    FOLDER.mkdir(parents=True, exist_ok=True)
    if clean:
        _clean()

    def kept(command: list[str], text: str, path: Path) -> Path:
        there = FOLDER / f"{hashlib.sha256(repr([command, text]).encode()).hexdigest()}.so"
        with open(there.with_suffix(".lock"), "w") as lock:
            # Two processes that want the same library build it once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not there.exists():
                _write(there, build(command, _with_precompiled(command, text), path).read_bytes())
            os.utime(there)
        return there

    host_build._compile = kept


def _with_precompiled(command: list[str], text: str) -> str:
    """The text with what stands before every kernel in a header, which g++ precompiles; clang++ reads it as text.

    Most kernels are built alone, and this halves the time.
    """
    common = host_section()
    shared, found, own = text.partition(common)
    if not found:
        return text
    shared += common
    header = FOLDER / f"{hashlib.sha256(repr([command, shared]).encode()).hexdigest()}.hpp"
    precompiled = header.with_suffix(".hpp.gch")
    with open(header.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not precompiled.exists():
            _write(header, shared.encode())
            options = [option for option in command if option != "-shared"]
            subprocess.run([*options, "-x", "c++-header", str(header), "-o", str(precompiled)], check=True)
    return f'#include "{header}"\n{own}'


def shared(name: str, make: Callable[[], T]) -> T:
    """What one process of a run has made, for the others, and for later runs until a source changes."""
    text = hashlib.sha256(f"{name} {sys.version}".encode())
    for source in sorted(path for folder in ("gpucast", "kernels", "bench") for path in _ROOT.glob(f"{folder}/**/*.*")):
        if source.suffix in (".py", ".cu", ".cuh", ".hpp", ".cpp"):
            text.update(f"{source} ".encode() + source.read_bytes())
    there = FOLDER / f"{text.hexdigest()}.pickle"
    with open(there.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there.exists():
            _write(there, pickle.dumps(make()))
    found: T = pickle.loads(there.read_bytes())
    return found


def _write(path: Path, data: bytes) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def cubins(nvrtc: Nvrtc) -> Compiler:
    """A compiler with a copy of NVRTC, which keeps what it made there."""
    return Compiler(NvrtcCopy(None, nvrtc), Cache(str(FOLDER / "cubins")))


def _clean() -> None:
    for path in FOLDER.iterdir():
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _KEPT:
                path.unlink()
