# SPDX-License-Identifier: Apache-2.0
"""The C library of the host (`host_native.c`, `host_native_blocks.c`), made by the compiler of this machine and cached.

It is no more than quick: where there is no compiler, or the cache folder cannot be written or is not private,
everything goes without it, silently and with the same bits. A library is code of this process, so it is loaded only
from what nobody else can have written (`gpucast.core.trusted_files`), under a key that the sources, the compiler with
its options and the processor's features are part of, and used only when it passed a trial (`gpucast.cpu.native.trial`);
else it is made again. The compiler runs in a thread of its own, when there is so much to do that it takes less time
than the work does without it.

Environment: ``GPUCAST_NATIVE=0`` for never, ``1`` however little there is to do; ``GPUCAST_CACHE_DIR``,
``GPUCAST_CACHE_READ`` and ``GPUCAST_CACHE_SIZE`` as for kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from gpucast.compile import cxx
from gpucast.compile.cache import Cache, digest, limit
from gpucast.compile.cache_folder import NATIVE, cache_folder, read_folder
from gpucast.core import trusted_files
from gpucast.cpu.native import trial

#: Bytes of sources that take NumPy a second or two, and the compiler no longer.
WORTH = 1 << 30
#: The name of the thread that waits for the compiler.
THREAD = "gpucast-compiler"
#: Seconds after which a compiler is given up.
_TIMEOUT = 30.0

#: Loops are made into vectors once, not again for their ends, which halves the time. Each operation is rounded by
#: itself, whatever $CC asks for. A choice between two may do both: nobody asks for exceptions. The compiler of ziglang
#: has sanitizers.
_FLAGS = (
    "-std=c11", "-O3", "--param", "vect-epilogues-nomask=0", "-fno-fast-math", "-ffp-contract=off",
    "-fno-trapping-math", "-fno-sanitize=all", "-fPIC", "-shared",
)  # fmt: skip

_LOADS = ("float", "upper_half", "half")
#: What the library is called for: it has each.
FUNCTIONS = (
    "cast_file", "each_run", "equal", "sum_words",
    "float_to_small8", "float_to_small16", "float_to_upper16",
    "upper_half_to_small8", "upper_half_to_small16", "upper_half_to_upper32",
    "half_to_small8", "half_to_upper16", "half_to_upper32",
    *(f"look{bits}" for bits in (8, 16, 32)),
    *(f"{kind}_of_{bits}" for kind in ("largest", "range") for bits in (16, 32)),
    *(f"{load}_{what}" for load in _LOADS for what in ("whole", "multiplied", "near", "divided", "beyond")),
)  # fmt: skip


class NativeLibrary:
    """The library of a process. Safe to use from several threads, and after a fork."""

    #: Held while a library is made out: one for all, so that a fork has one to renew.
    lock = threading.Lock()

    def __init__(self, cache: Cache, worth: int = WORTH) -> None:
        self._cache, self._worth = cache, worth
        self._library: ctypes.CDLL | None = None
        self._command: tuple[str, ...] = ()
        self._searched = self._compiled = False
        self._pending_bytes = 0

    def library(self, nbytes: int = 0) -> ctypes.CDLL | None:
        """The library, or None while there is none; `nbytes` of sources are to be worked on."""
        if self._library is None:
            with self.lock:
                self._search(nbytes)
        return self._library

    def key(self) -> str:
        """The name of the library in the cache. CompilerMissing without a compiler."""
        if not self._command:
            self._command = tuple(cxx.find("c", "native"))
        return _key(self._command, cxx.versions(self._command))

    def _search(self, nbytes: int) -> None:
        if not self._searched:
            self._library = self._cached()
            # Not before: a child that is forked meanwhile has no thread that looks, and does it itself.
            self._searched = True
        self._pending_bytes += nbytes
        if self._library is None and not self._compiled and self._pending_bytes >= self._worth:
            self._compiled = True
            threading.Thread(target=self._compile, name=THREAD).start()

    def _cached(self) -> ctypes.CDLL | None:
        if self._cache.is_empty():
            return None
        try:
            key = self.key()
            data = self._cache.get(key)
            if data is None:
                return None
            with _private_folder() as folder:
                return _loaded(data, folder)
        except trial.Unfit:
            self._cache.drop(key)
        except (OSError, cxx.CompilerMissing, ValueError):
            pass
        return None

    def _compile(self) -> None:
        try:
            # Not for one process alone: the next ones would do it again.
            if not self._cache.is_writable():
                return
            key = self.key()
            with _private_folder() as folder:
                made = Path(folder) / "made.so"
                command = [*self._command, *_flags(), "-o", str(made), *map(str, _SOURCES)]
                # Compilers put what goes from one of their parts to the next into a temporary file, too.
                environment = {**os.environ, "TMPDIR": folder}
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TIMEOUT, cwd=folder,
                    env=environment,
                )  # fmt: skip
                data = made.read_bytes()
                library = _loaded(data, folder)
        except (OSError, subprocess.SubprocessError, cxx.CompilerMissing, ValueError):
            return
        self._cache.put(key, data)
        self._library = library


_SOURCES = tuple(Path(__file__).with_name(f"host_native{part}.c") for part in ("", "_blocks"))
_HEADER = Path(__file__).with_name("host_native.h")


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for files that programs open by name: OSError where others could exchange them meanwhile."""
    with tempfile.TemporaryDirectory(prefix="gpucast-native-", ignore_cleanup_errors=True) as folder:
        trusted_files.Folder(folder).close()
        yield folder


def _loaded(data: bytes, folder: str) -> ctypes.CDLL:
    # A library that is loaded stays so without its file.
    path = Path(folder) / "native.so"
    path.write_bytes(data)
    return trial.load(str(path), FUNCTIONS)


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


@lru_cache(maxsize=8)
def _key(command: tuple[str, ...], versions: tuple[str, ...]) -> str:
    machine = (platform.system(), platform.machine(), str(sys.maxsize), _features())
    sources = (path.read_bytes() for path in (_HEADER, *_SOURCES))
    return digest("native", *sources, *machine, *_flags(), str(len(command)), *command, *versions)


def _renew_lock() -> None:
    """In the child of a fork: the thread that may have held the lock is not there to give it back."""
    NativeLibrary.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def library(nbytes: int = 0) -> ctypes.CDLL | None:
    """`Native.library` of this process."""
    with NativeLibrary.lock:
        native = _native()
    return None if native is None else native.library(nbytes)


@lru_cache(maxsize=1)
def _native() -> NativeLibrary | None:
    """None where it is switched off, or cannot be kept: on Windows nobody tells who may write a file.

    And where bytes lie the other way round than in files, to which it writes words as they are.
    """
    try:
        size_limit = limit("native")
    except ValueError:
        return None
    asked = os.environ.get("GPUCAST_NATIVE")
    if asked == "0" or not size_limit or not trusted_files.OWNERS_ARE_KNOWN:
        return None
    if sys.byteorder != "little":
        return None
    cache = Cache(os.path.join(cache_folder(), NATIVE), size_limit, private=True, also=read_folder(NATIVE))
    return NativeLibrary(cache, 0 if asked == "1" else WORTH)
