# SPDX-License-Identifier: Apache-2.0
"""CUDA text and an architecture in, a cubin out; the only owner of the kernel cache. Needs neither a GPU nor CuPy.

Environment: ``GPUCAST_CACHE_DIR`` (the folder of the cache), ``GPUCAST_CACHE_READ`` (another that is only read) and
``GPUCAST_CACHE_SIZE`` (the limit of the first in MiB, by default 256; 0 keeps compiled kernels in memory only).
"""

from __future__ import annotations

import json
import os
import re
import threading
from functools import lru_cache

from gpucast.core.arithmetic import exact
from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import nvrtc
from gpucast.kernel.cache import KERNELS, Cache, cache_folder, digest, limit, read_folder
from gpucast.kernel.nvrtc import Compiled, CompileError, Nvrtc
from gpucast.kernel.nvrtc_search import NvrtcCopy, find

__all__ = ["CompileError", "Compiler", "architecture", "compile", "compile_for", "compiler"]

#: Part of every key: raise it when the contents of an entry change.
_FORMAT = "1"
#: The oldest compute capability that the kernels are made for.
_OLDEST = 75
#: From here on the `a` variant of an architecture has conversion instructions that the plain one lacks (float4, float6,
#: e8m0); sm_90a adds matrix instructions only.
_SPECIFIC = 100
_ARCH = re.compile(r"(?:(sm|compute)_)?(\d+)(?:\.(\d))?([af]?)")


class Compiler:
    """One copy of NVRTC with the cache of its results. Several threads may use it at a time."""

    def __init__(self, found: NvrtcCopy, cache: Cache) -> None:
        self.cache = cache
        self.path = found.path
        self._nvrtc = found.loaded
        self._lock = threading.RLock()
        self._gates: dict[str, threading.Lock] = {}
        #: The version of NVRTC, such as (12, 9), and the compute capabilities that it compiles for, such as 75 for 7.5.
        self.version, self.architectures = self._facts()

    @property
    def options(self) -> tuple[str, ...]:
        """The options of every kernel. None concerns floating-point arithmetic: the kernels compute with integers."""
        # Leaves out the declarations of the CUDA runtime, which take a quarter of the time of a small kernel.
        minimal = ("--minimal",) if self.version >= (12, 4) else ()
        return ("--std=c++17", *minimal)

    @property
    def served(self) -> tuple[int, ...]:
        """The architectures that both NVRTC and the kernels support, ascending."""
        return tuple(number for number in self.architectures if number >= _OLDEST)

    @exact()
    def compile(self, text: str, name: str, arch: str) -> Compiled:
        """The kernel `name` in `text`, compiled for `arch`, from the cache where it is there.

        CompileError when NVRTC refuses it, DeviceUnavailable when NVRTC or its builtins cannot be loaded.
        """
        key = digest("kernel", _FORMAT, self._version_text, arch, *self.options, name, text)
        with self._lock:
            gate = self._gates.setdefault(key, threading.Lock())
        try:
            # Two threads that want the same kernel compile it once.
            with gate:
                entry = self.cache.get(key)
                if entry is None:
                    compiled = self._load().compile(text, name, arch, self.options)
                    log = compiled.log.encode()
                    entry = len(log).to_bytes(4, "little") + log + compiled.code
                    self.cache.put(key, entry)
        finally:
            with self._lock:
                self._gates.pop(key, None)
        size = 4 + int.from_bytes(entry[:4], "little")
        return Compiled(entry[size:], entry[4:size].decode())

    def architecture(self, capability: tuple[int, int], specific: bool = True) -> str:
        """The architecture to compile for, given a device's compute capability such as (9, 0).

        This is the device's own architecture, in its `a` variant if `specific` is true, the variant has further
        instructions, and NVRTC knows it. For a device newer than NVRTC it is the newest PTX, which the driver compiles.
        DeviceUnavailable for a device that is too old for the kernels or for NVRTC.
        """
        number = 10 * capability[0] + capability[1]
        if number in self.architectures and number >= _OLDEST:
            arch = f"sm_{number}"
            return f"{arch}a" if specific and number >= _SPECIFIC and self.accepts(f"{arch}a") else arch
        older = [known for known in self.architectures if known < number]
        if not older or number < _OLDEST:
            least = max(_OLDEST, self.architectures[0])
            raise DeviceUnavailable(
                f"compile: the device has compute capability {capability[0]}.{capability[1]}; "
                f"gpucast with NVRTC {self._version_text} needs {least // 10}.{least % 10} or newer"
            )
        return f"compute_{older[-1]}"

    def parse(self, arch: str) -> str:
        """The architecture that a user named: "sm_90", "sm_100a", "compute_90", "90" or "9.0"; else ValueError."""
        match = _ARCH.fullmatch(arch)
        if match:
            kind, number, minor, variant = match.groups()
            name = f"{kind or 'sm'}_{number}{minor or ''}{variant}"
            if int(number + (minor or "")) in self.served and (not variant or self.accepts(name)):
                return name
        served = ", ".join(f"sm_{number}" for number in self.served)
        raise ValueError(
            f"{arch!r} is not an architecture that gpucast compiles for with NVRTC {self._version_text}; expected "
            f"{served}, one of them with the suffix a or f where it has such a "
            "variant, or with compute_ in place of sm_"
        )

    def accepts(self, arch: str) -> bool:
        """Whether NVRTC compiles for `arch`: tried once, then kept in the cache."""
        key = digest("accepts", _FORMAT, self._version_text, arch)
        entry = self.cache.get(key)
        if entry is None:
            entry = b"yes" if self._load().accepts(arch) else b"no"
            self.cache.put(key, entry)
        return entry == b"yes"

    @property
    def _version_text(self) -> str:
        return ".".join(map(str, self.version))

    def _facts(self) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Version and architectures; from the cache, because loading NVRTC takes longer than all of a warm start."""
        if self.path is None:
            return self._load().version, self._load().architectures
        status = os.stat(self.path)
        path = os.path.realpath(self.path)
        key = digest("facts", _FORMAT, path, str(status.st_size), str(status.st_mtime_ns))
        entry = self.cache.get(key)
        if entry is None:
            library = self._load()
            entry = json.dumps([library.version, library.architectures]).encode()
            self.cache.put(key, entry)
        (major, minor), architectures = json.loads(entry)
        return (major, minor), tuple(architectures)

    def _load(self) -> Nvrtc:
        with self._lock:
            if self._nvrtc is None:
                assert self.path is not None
                try:
                    self._nvrtc = nvrtc.load(self.path)
                except OSError as error:
                    raise DeviceUnavailable(
                        f"compile: NVRTC cannot be loaded ({error}); install the package that holds {self.path} again"
                    ) from None
            return self._nvrtc


_creation = threading.Lock()


def compiler() -> Compiler:
    """The compiler of this process. DeviceUnavailable, with the packages to install, if there is none."""
    with _creation:
        return _compiler()


@lru_cache(maxsize=1)
def _compiler() -> Compiler:
    kept = Cache(os.path.join(cache_folder(), KERNELS), limit("compile"), also=read_folder(KERNELS))
    return Compiler(find(), kept)


def compile(text: str, name: str, arch: str) -> Compiled:
    """`Compiler.compile` of this process's compiler."""
    return compiler().compile(text, name, arch)


def architecture(capability: tuple[int, int], specific: bool = True) -> str:
    """`Compiler.architecture` of this process's compiler."""
    return compiler().architecture(capability, specific)


def compile_for(text: str, name: str, capability: tuple[int, int]) -> bytes:
    """The compiled kernel, as the driver loads it, for a device's compute capability such as (9, 0)."""
    return compile(text, name, architecture(capability)).code
