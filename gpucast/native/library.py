# SPDX-License-Identifier: Apache-2.0
"""The host's compiled library: units of the kernels' text (`gpucast.codegen.host`), compiled here and cached.

It only makes casts quicker: where there is no compiler, or the cache folder cannot be written or is not private, NumPy
does the work, silently and with the same bits. A library is code that runs in this process. So it is loaded only from
files that nobody else can have written (`gpucast.core.trusted_files`), and used only after it passed a trial
(`gpucast.native.trial`); otherwise it is compiled again. Its key in the cache includes the text, the compiler with its
options, and the processor's features. The compiler runs in a thread of its own, and only when there is so much to cast
by a unit that compiling it pays off.

Environment: ``GPUCAST_NATIVE=0``: never use it; ``1``: compile it however little there is to cast.
``GPUCAST_CACHE_DIR``, ``GPUCAST_CACHE_READ`` and ``GPUCAST_CACHE_SIZE`` as for kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpucast.codegen.host import HostUnit
from gpucast.compile import cxx, processes
from gpucast.compile.cache import Cache, digest, limit
from gpucast.compile.cache_folder import NATIVE, cache_folder, read_folder
from gpucast.core import trusted_files
from gpucast.native import threads, trial

#: Bytes of sources from which compiling pays off: NumPy takes a second or two for them, as the compiler does.
WORTH = 1 << 30
_THREAD = "gpucast-compiler"
#: Seconds after which the compiler is stopped.
_TIMEOUT = 30.0

#: Loops are vectorized, some as an `omp simd` says, but not their epilogues, which halves the compile time. Each
#: operation is rounded by itself, whatever options $CXX holds. Nobody reads floating-point exceptions or errno, so both
#: sides of a choice may be computed. The compiler of ziglang enables sanitizers by default.
_FLAGS = (
    "-std=c++17", "-O3", "--param", "vect-epilogues-nomask=0", "-fno-fast-math", "-ffp-contract=off",
    "-fno-trapping-math", "-fno-math-errno", "-fopenmp-simd", "-fno-exceptions", "-fno-rtti", "-fno-sanitize=all",
    "-Wno-unknown-pragmas", "-fPIC", "-shared",
)  # fmt: skip


class NativeLibrary:
    """One unit's library in a process. Safe to use from several threads and after a fork."""

    #: Held while a library is looked for. A single lock for all, so that a forked child has only one to renew.
    lock = threading.Lock()

    def __init__(self, unit: HostUnit, cache: Cache, worth: int = WORTH) -> None:
        self._unit, self._cache, self._worth = unit, cache, worth
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
            self._command = tuple(cxx.find("native"))
        machine = (platform.system(), platform.machine(), str(sys.maxsize), _features())
        versions = cxx.versions(self._command)
        return digest("native", self._unit.text, *machine, *_flags(), str(len(versions)), *self._command, *versions)

    def _search(self, nbytes: int) -> None:
        if not self._searched:
            self._library = self._cached()
            # Set only afterwards: a child that is forked during the search has no thread that finishes it, and
            # searches.
            self._searched = True
        self._pending_bytes += nbytes
        if self._library is None and not self._compiled and self._pending_bytes >= self._worth:
            self._compiled = True
            processes.in_background(self._compile, _THREAD)

    def _cached(self) -> ctypes.CDLL | None:
        if self._cache.is_empty():
            return None
        try:
            key = self.key()
            data = self._cache.get(key)
            if data is None:
                return None
            with _private_folder() as folder:
                return self._loaded(data, folder)
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
                text, made = Path(folder) / "unit.cpp", Path(folder) / "made.so"
                text.write_text(self._unit.text, encoding="utf-8")
                command = [*self._command, *_flags(), "-o", str(made), str(text)]
                # Compilers write intermediate files to the temporary folder, so that must be private too.
                environment = {**os.environ, "TMPDIR": folder}
                commands.run(command, timeout=_TIMEOUT, cwd=folder, env=environment).check_returncode()
                data = made.read_bytes()
                library = self._loaded(data, folder)
        except (OSError, subprocess.SubprocessError, cxx.CompilerMissing, ValueError):
            return
        self._cache.put(key, data)
        self._library = library

    def _loaded(self, data: bytes, folder: str) -> ctypes.CDLL:
        # A loaded library no longer needs its file.
        path = Path(folder) / "native.so"
        path.write_bytes(data)
        return trial.load(str(path), self._unit.functions)


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """A folder for files that programs open by name; OSError if others could replace files in it."""
    with tempfile.TemporaryDirectory(prefix="gpucast-native-", ignore_cleanup_errors=True) as folder:
        trusted_files.Folder(folder).close()
        yield folder


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


def _renew_lock() -> None:
    """Run in the child of a fork: the thread that may have held the lock does not exist there to release it."""
    NativeLibrary.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def library(make: Callable[..., HostUnit], *arguments: Any, nbytes: int = 0) -> ctypes.CDLL | None:
    """The library of the unit ``make(*arguments)``, if there is one; `nbytes`: bytes of sources about to be cast."""
    with NativeLibrary.lock:
        native = _native(make, *arguments)
    return None if native is None else native.library(nbytes)


@lru_cache(maxsize=256)
def _native(make: Callable[..., HostUnit], *arguments: Any) -> NativeLibrary | None:
    cache = _cache()
    worth = 0 if os.environ.get("GPUCAST_NATIVE") == "1" else WORTH
    return None if cache is None else NativeLibrary(make(*arguments), cache, worth)


@lru_cache(maxsize=1)
def _cache() -> Cache | None:
    """None where the library is never used."""
    if why_not():
        return None
    return Cache(os.path.join(cache_folder(), NATIVE), limit("native"), private=True, also=read_folder(NATIVE))


def finish() -> None:
    """Wait for the compilers that run."""
    for thread in threading.enumerate():
        if thread.name == _THREAD:
            thread.join()


def why_not() -> str:
    """Why this process never uses the library, "" where it may. A compiler may be missing all the same."""
    if os.environ.get("GPUCAST_NATIVE") == "0":
        return "GPUCAST_NATIVE=0"
    if not trusted_files.OWNERS_ARE_KNOWN:
        return "this system does not tell who may write a file"
    if sys.byteorder != "little":
        # Nobody has tried it there, and files hold little-endian words.
        return "this machine is big-endian"
    try:
        threads.most()
        return "" if limit("native") else "GPUCAST_CACHE_SIZE=0"
    except ValueError as error:
        return str(error)


def status() -> str:
    """What casts long arrays of the host, and why, in a line for `gpucast info`."""
    why = why_not()
    folder = os.path.join(cache_folder(), NATIVE)
    compiled, _ = Cache(folder).usage()
    try:
        command = "" if why else shlex.join(cxx.find("native"))
    except cxx.CompilerMissing as error:
        why = str(error)
    if why:
        return f"NumPy alone: {why}"
    when = "at once" if os.environ.get("GPUCAST_NATIVE") == "1" else f"when {WORTH >> 30} GB of a type are cast"
    return f"compiled by {command} {when}, else NumPy; {compiled} parts are in {folder}"
