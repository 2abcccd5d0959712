# SPDX-License-Identifier: Apache-2.0
"""What compilers have made of kernels is kept in build/kernels: for the other processes of a run, and for the next.

Its names are hashes of the compiler's command and of the text, so that a change of either builds it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path

from gpucast.compile.cache import Cache
from gpucast.compile.compiler import Compiler
from gpucast.compile.nvrtc import Nvrtc
from gpucast.compile.nvrtc_search import NvrtcCopy
from gpucast.parity import host_build

#: Ignored by git.
FOLDER = Path(__file__).parents[1] / "build" / "kernels"
#: The seconds after which a library that nobody has used goes.
_KEPT = 7 * 86400.0


def install() -> None:
    """From now on builds of this process look there first."""
    build = host_build._compile
    FOLDER.mkdir(parents=True, exist_ok=True)
    _clean()

    def kept(command: list[str], text: str, path: Path) -> Path:
        there = FOLDER / f"{hashlib.sha256(repr([command, text]).encode()).hexdigest()}.so"
        with open(there.with_suffix(".lock"), "w") as lock:
            # Two processes that want the same library build it once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not there.exists():
                unfinished = there.with_suffix(f".{os.getpid()}")
                unfinished.write_bytes(build(command, text, path).read_bytes())
                unfinished.replace(there)
            os.utime(there)
        return there

    host_build._compile = kept


def cubins(nvrtc: Nvrtc) -> Compiler:
    """A compiler with a copy of NVRTC, which keeps what it made there."""
    return Compiler(NvrtcCopy(None, nvrtc), Cache(str(FOLDER / "cubins")))


def _clean() -> None:
    for path in FOLDER.iterdir():
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _KEPT:
                path.unlink()
