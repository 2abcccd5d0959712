# SPDX-License-Identifier: Apache-2.0
"""The C library of the host (`host_native.c`, `host_native_blocks.c`), made by the compiler of this machine and cached.

It is no more than quick: where there is no compiler, or the cache folder cannot be written or is not ours, everything
goes without it, silently and with the same bits. A library is code of this process, so it is loaded only from a file
that belongs to us and that nobody else may write. The compiler runs in a thread of its own, when there is so much to do
that it takes less time than the work does without it.

Environment: ``GPUCAST_NATIVE=0`` for never, ``1`` however little there is to do; ``GPUCAST_CACHE_DIR`` and
``GPUCAST_CACHE_SIZE`` as for kernels.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path

from gpucast.compile import cxx as host_compiler
from gpucast.compile.cache import Cache, digest, limit
from gpucast.compile.cache_folder import cache_folder

#: Bytes of sources that take NumPy a second or two, and the compiler no longer.
WORTH = 1 << 30
#: The name of the thread that waits for the compiler.
THREAD = "gpucast-compiler"
#: Seconds after which a compiler is given up.
_TIMEOUT = 30.0

#: Loops are made into vectors once, not again for their ends, which halves the time. Each operation is rounded by
#: itself. A choice between two may do both: nobody asks for exceptions. The compiler of ziglang has sanitizers.
_FLAGS = (
    "-std=c11", "-O3", "--param", "vect-epilogues-nomask=0", "-ffp-contract=off", "-fno-trapping-math",
    "-fno-sanitize=all", "-fPIC", "-shared",
)  # fmt: skip


class Native:
    """The library of a process. Safe to use from several threads."""

    def __init__(self, cache: Cache, worth: int = WORTH) -> None:
        self._cache, self._worth = cache, worth
        self._library: ctypes.CDLL | None = None
        self._looked = self._compiled = False
        self._wanted = 0
        self._lock = threading.Lock()

    def library(self, nbytes: int = 0) -> ctypes.CDLL | None:
        """The library, or None while there is none; `nbytes` of sources are to be worked on."""
        if self._library is None:
            with self._lock:
                self._look(nbytes)
        return self._library

    def _look(self, nbytes: int) -> None:
        if not self._looked:
            self._looked = True
            self._library = self._cached()
        self._wanted += nbytes
        if self._library is None and not self._compiled and self._wanted >= self._worth:
            self._compiled = True
            threading.Thread(target=self._compile, name=THREAD).start()

    def _cached(self) -> ctypes.CDLL | None:
        data = self._cache.get(_key())
        if data is None:
            return None
        try:
            with tempfile.TemporaryDirectory(prefix="gpucast-native-", ignore_cleanup_errors=True) as folder:
                return _loaded(data, folder)
        except OSError:
            return None

    def _compile(self) -> None:
        try:
            # Not for one process alone: the next ones would do it again.
            os.makedirs(self._cache.folder, 0o700, exist_ok=True)
            if os.stat(self._cache.folder).st_uid != os.geteuid() or not os.access(self._cache.folder, os.W_OK):
                return
            with tempfile.TemporaryDirectory(prefix="gpucast-native-", ignore_cleanup_errors=True) as folder:
                made = Path(folder) / "made.so"
                command = [*host_compiler.find("c", "native"), *_flags(), "-o", str(made), *map(str, _SOURCES)]
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TIMEOUT, cwd=folder
                )
                data = made.read_bytes()
                library = _loaded(data, folder)
        except (OSError, subprocess.SubprocessError, host_compiler.CompilerMissing, ValueError):
            return
        self._cache.put(_key(), data)
        self._library = library


_SOURCES = tuple(Path(__file__).with_name(f"host_native{part}.c") for part in ("", "_blocks"))
_HEADER = Path(__file__).with_name("host_native.h")


def _loaded(data: bytes, folder: str) -> ctypes.CDLL:
    # A library that is loaded stays so without its file.
    path = Path(folder) / "native.so"
    path.write_bytes(data)
    return ctypes.CDLL(str(path))


@lru_cache(maxsize=1)
def _flags() -> tuple[str, ...]:
    """For this very processor where its features are known, which the key then has; else for any of its kind."""
    return (*_FLAGS, "-march=native") if _features() else _FLAGS


@lru_cache(maxsize=1)
def _features() -> str:
    """What Linux says of the first x86 processor's features; "" elsewhere, where nothing beyond the usual is needed."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpus:
            return next((line.partition(":")[2] for line in cpus if line.startswith("flags")), "")
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _key() -> str:
    machine = (platform.system(), platform.machine(), str(sys.maxsize), _features())
    return digest("native", *(path.read_bytes() for path in (_HEADER, *_SOURCES)), *machine, *_flags())


_creation = threading.Lock()


def library(nbytes: int = 0) -> ctypes.CDLL | None:
    """`Native.library` of this process."""
    with _creation:
        native = _native()
    return None if native is None else native.library(nbytes)


@lru_cache(maxsize=1)
def _native() -> Native | None:
    """None where it is switched off, or cannot be kept: on Windows nobody tells who may write a file.

    And where bytes lie the other way round than in files, to which it writes words as they are.
    """
    try:
        room = limit("native")
    except ValueError:
        return None
    asked = os.environ.get("GPUCAST_NATIVE")
    if asked == "0" or not room or not hasattr(os, "geteuid"):
        return None
    if sys.byteorder != "little":
        return None
    return Native(Cache(os.path.join(cache_folder(), "native"), room, private=True), 0 if asked == "1" else WORTH)
