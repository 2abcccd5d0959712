# SPDX-License-Identifier: Apache-2.0
"""NVRTC, CUDA's compiler as a library: CUDA text in, cubin or PTX out. Needs neither a GPU nor a driver nor CuPy.

Bound with ctypes. CuPy's own binding drops the last byte of every cubin, and cuda-bindings would be one more package
to keep to the same CUDA major, all for the ten functions below.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpucast.core.errors import DeviceUnavailable
from gpucast.kernel import nvrtc_builtins

#: The codes of nvrtcResult that are treated differently here.
_SUCCESS, _INVALID_OPTION, _COMPILATION, _BUILTIN_OPERATION_FAILURE = 0, 5, 6, 7
#: How the assembler names a line of inline PTX. NVRTC quotes the CUDA lines that it refuses, but not lines of PTX.
_PTX_LINE = re.compile(r"ptx input, line (\d+)")
#: How many PTX lines and how many lines of the log an error shows; the whole log is its attribute.
_QUOTED, _LOG_LINES = 3, 40


class CompileError(RuntimeError):
    """NVRTC refused a text or an option. `log` is its whole log, `code` its nvrtcResult."""

    def __init__(self, message: str, code: int, log: str) -> None:
        super().__init__(message)
        self.code = code
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, int, str]]:
        # Makes it picklable, so that a worker process can raise it in its parent.
        return type(self), (str(self), self.code, self.log)


@dataclass(frozen=True)
class Compiled:
    """`code` is a cubin, or PTX ending in a zero byte, as the driver wants it; `log` holds the warnings."""

    code: bytes
    log: str


class Nvrtc:
    """A loaded NVRTC library. Several threads may use it at a time."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        #: Such as (12, 9).
        self.version = (major.value, minor.value)
        self._builtins = nvrtc_builtins.load(library, self.version)
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        #: The compute capabilities that it compiles for, ascending, such as 75 for 7.5.
        self.architectures = tuple(sorted(numbers))

    @property
    def path(self) -> str:
        """The file that it was loaded from; "" if that is not known."""
        return self._builtins.nvrtc

    def compile(self, text: str, name: str, arch: str, options: Sequence[str] = ()) -> Compiled:
        """`text` compiled for `arch`: "sm_90" gives a cubin, "compute_90" PTX. `name` is what messages call the text.

        CompileError when NVRTC refuses the text, the architecture or an option, DeviceUnavailable when it lacks the
        library of its builtins and so compiles nothing.
        """
        if "\0" in text:
            raise ValueError(f"compile: the text of {name} holds a NUL character, at which NVRTC would stop reading")
        flags = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in options)]
        program = ctypes.c_void_p()
        reference = ctypes.byref(program)
        self._call("nvrtcCreateProgram", reference, text.encode(), f"{name}.cu".encode(), 0, None, None)
        try:
            code = self._library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if code == _SUCCESS:
                kind = "nvrtcGetPTX" if arch.startswith("compute_") else "nvrtcGetCUBIN"
                return Compiled(self._read(program, kind), log)
        finally:
            self._library.nvrtcDestroyProgram(reference)
        if code == _BUILTIN_OPERATION_FAILURE:
            # This says nothing about the text or the architecture, so it must not be cached as their failure.
            raise DeviceUnavailable(self._builtins.missing())
        quoted = self._quoted(text, name, arch, options, log)
        raise CompileError(self._explain(code, name, arch, log, quoted), code, log)

    def accepts(self, arch: str) -> bool:
        """Whether it compiles for `arch`: tried, because NVRTC lists architectures, but not their variants (sm_100a).

        DeviceUnavailable as for `compile`.
        """
        try:
            self.compile("", "probe", arch)
        except CompileError as error:
            if error.code not in (_INVALID_OPTION, _COMPILATION):
                raise
            return False
        return True

    def _read(self, program: ctypes.c_void_p, function: str) -> bytes:
        """The result of a function such as nvrtcGetCUBIN for a program."""
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(function, program, buffer)
        return buffer.raw[: size.value]

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != _SUCCESS:
            raise RuntimeError(f"compile: {function} failed: {self._text(code)}")

    def _text(self, code: int) -> str:
        return str(self._library.nvrtcGetErrorString(code).decode())

    def _quoted(self, text: str, name: str, arch: str, options: Sequence[str], log: str) -> list[str]:
        """The lines of PTX that the log refers to."""
        numbers = [int(number) for number in dict.fromkeys(_PTX_LINE.findall(log))]
        if not numbers:
            return []
        try:
            ptx = self.compile(text, name, arch.replace("sm_", "compute_"), options).code.decode().split("\n")
        except CompileError:
            return []
        return [f"{number:>6} | {ptx[number - 1]}" for number in numbers[:_QUOTED] if number <= len(ptx)]

    def _explain(self, code: int, name: str, arch: str, log: str, quoted: Sequence[str]) -> str:
        version = ".".join(map(str, self.version))
        if code == _INVALID_OPTION:
            known = ", ".join(f"sm_{number}" for number in self.architectures)
            hint = f"; it compiles for {known}" if "architecture" in log else ""
            return f"compile: NVRTC {version} refused its options for {arch}: {log}{hint}"
        messages = log.splitlines()
        more = [f"... and {len(messages) - _LOG_LINES} more lines"] if len(messages) > _LOG_LINES else []
        first = f"compile: NVRTC {version} cannot compile {name} for {arch} ({self._text(code)})"
        return "\n".join([first, *messages[:_LOG_LINES], *more, *quoted])


def load(path: str) -> Nvrtc:
    """The library at `path`, or of that name on the loader's path. OSError when there is none."""
    if sys.platform == "win32" and os.path.isabs(path):
        # NVRTC opens its builtins library by name, and Windows searches only the folders of these two lists.
        folder = os.path.dirname(path)
        os.add_dll_directory(folder)
        os.environ["PATH"] = os.pathsep.join((folder, os.environ.get("PATH", "")))
    return Nvrtc(ctypes.CDLL(path))
