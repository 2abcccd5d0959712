# SPDX-License-Identifier: Apache-2.0
"""The C library of the host (`host_native.c`, `host_native_blocks.c`), compiled on this machine and cached.

It only makes casts quicker: where there is no compiler, or the cache folder cannot be written or is not private, NumPy
does the work, silently and with the same bits. A library is code that runs in this process. So it is loaded only from
files that nobody else can have written (`gpucast.core.trusted_files`), and used only after it passed a trial
(`gpucast.cpu.native.trial`); otherwise it is compiled again. Its key in the cache includes the sources, the compiler
with its options, and the processor's features. The compiler runs in a thread of its own, and only when there is so much
to cast that compiling pays off.

Environment: ``GPUCAST_NATIVE=0``: never use it; ``1``: compile it however little there is to cast.
``GPUCAST_CACHE_DIR``, ``GPUCAST_CACHE_READ`` and ``GPUCAST_CACHE_SIZE`` as for kernels.
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

from gpucast.compile import cxx, processes
from gpucast.compile.cache import Cache, digest, limit
from gpucast.compile.cache_folder import NATIVE, cache_folder, read_folder
from gpucast.core import trusted_files
from gpucast.cpu.native import trial

#: Bytes of sources from which compiling pays off: NumPy takes a second or two for them, as the compiler does.
WORTH = 1 << 30
#: The name of the thread that runs the compiler.
THREAD = "gpucast-compiler"
#: Seconds after which the compiler is stopped.
_TIMEOUT = 30.0

#: Loops are vectorized, but not their epilogues, which halves the compile time. Each operation is rounded by itself,
#: whatever options $CC holds. Nobody reads floating-point exceptions, so both sides of a choice may be computed. The
#: compiler of ziglang enables sanitizers by default.
_FLAGS = (
    "-std=c11", "-O3", "--param", "vect-epilogues-nomask=0", "-fno-fast-math", "-ffp-contract=off",
    "-fno-trapping-math", "-fno-sanitize=all", "-fPIC", "-shared",
)  # fmt: skip

_LOADS = ("float", "upper_half", "half")
#: The functions that the library must have.
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
    """The library of a process. Safe to use from several threads and after a fork."""

    #: Held while a library is looked for. A single lock for all, so that a forked child has only one to renew.
    lock = threading.Lock()

    def __init__(self, cache: Cache, worth: int = WORTH) -> None:
        self._cache, self._worth = cache, worth
        self._library: ctypes.CDLL | None = None
        self._command: tuple[str, ...] = ()
        self._searched = self._compiled = False
        self._pending_bytes = 0

    def library(self, nbytes: int = 0) -> ctypes.CDLL | None:
        """The library, or None while there is none; `nbytes`: bytes of sources about to be cast."""
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
            # Set only afterwards: a child that is forked during the search has no thread that finishes it, and
            # searches.
            self._searched = True
        self._pending_bytes += nbytes
        if self._library is None and not self._compiled and self._pending_bytes >= self._worth:
            self._compiled = True
            processes.in_background(self._compile, THREAD)

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

    def _compile(self, commands: processes.Commands) -> None:
        try:
            # Compiling pays off only if later processes find the library in the cache.
            if not self._cache.is_writable():
                return
            key = self.key()
            with _private_folder() as folder:
                made = Path(folder) / "made.so"
                command = [*self._command, *_flags(), "-o", str(made), *map(str, _SOURCES)]
                # Compilers write intermediate files to the temporary folder, so that must be private too.
                environment = {**os.environ, "TMPDIR": folder}
                commands.run(command, timeout=_TIMEOUT, cwd=folder, env=environment).check_returncode()
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
    """A folder for files that programs open by name; OSError if others could replace files in it."""
    with tempfile.TemporaryDirectory(prefix="gpucast-native-", ignore_cleanup_errors=True) as folder:
        trusted_files.Folder(folder).close()
        yield folder


def _loaded(data: bytes, folder: str) -> ctypes.CDLL:
    # A loaded library no longer needs its file.
    path = Path(folder) / "native.so"
    path.write_bytes(data)
    return trial.load(str(path), FUNCTIONS)


@lru_cache(maxsize=1)
def _flags() -> tuple[str, ...]:
    """The compiler's options, for this very processor if its features are known and so part of the key."""
    return (*_FLAGS, "-march=native") if _features() else _FLAGS


@lru_cache(maxsize=1)
def _features() -> str:
    """The features of an x86 processor as Linux lists them; "" elsewhere, where generic code is quick enough."""
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
    """Run in the child of a fork: the thread that may have held the lock does not exist there to release it."""
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
    """None where it is switched off or cannot be cached: on Windows it is not known who may write a file.

    Also None on big-endian machines, because it writes words to little-endian files as they are.
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
