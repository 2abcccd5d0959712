# SPDX-License-Identifier: Apache-2.0
"""Floating-point arithmetic that gives the same bits in every thread.

Other code may have changed how a thread's processor computes. XLA's threads and ``torch.set_flush_denormal(True)`` turn
subnormals into zeros (FTZ and DAZ on x86, FZ on ARM); other libraries round upward or trap. NumPy keeps its error state
per thread as well. None of this may change a result. So all arithmetic with floats on the host, in public functions and
in tables, runs within `exact`.

Integers need no such care. Python's own floats do: ``float(text)``, ``repr``, ``math.ldexp``, ``x == 0`` and the hash
of a float change where subnormals are flushed or numbers are rounded upward.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, TypeVar

try:
    import ctypes
except ImportError:  # Some Pythons are built without it.
    ctypes = None  # type: ignore[assignment]

_P = ParamSpec("_P")
_T = TypeVar("_T")

# ---- the modes of a thread: no other code reads or sets them ----


class _Member(NamedTuple):
    """A member of C's fenv_t: its size in bytes, the bits that hold modes, and their default. The other bits are status
    flags."""

    name: str
    size: int
    modes: int = 0
    default: int = 0


_X87, _SSE = _Member("x87", 2, 0x0F3F, 0x033F), _Member("sse", 4, 0xFFFFFFC0, 0x1F80)
#: fenv_t by system and processor; musl has the layouts of glibc. FE_DFL_ENV would not do: glibc before 2.23 leaves FTZ
#: and DAZ as they are, and on ARM every glibc leaves the modes of NaN and of halves.
_LAYOUTS = {
    ("linux", "x86_64"): (_X87, _Member("between", 26), _SSE),
    ("linux", "aarch64"): (_Member("fpcr", 4, 2**32 - 1), _Member("fpsr", 4)),
    ("darwin", "x86_64"): (_X87, _Member("status", 2), _SSE, _Member("rest", 8)),
    ("darwin", "arm64"): (_Member("fpsr", 8), _Member("fpcr", 8, 2**64 - 1)),
}


def _environment() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return two functions. The first sets the default modes of this thread and returns the modes before, or None where
    they were the default. The second restores the modes that the first one returned.

    On other systems and processors both do nothing.
    """
    members = _LAYOUTS.get((sys.platform, platform.machine()), ())
    # With the GIL, unlike CDLL: a call takes less time than to let go of it, and no other thread comes in between.
    library: Any = ctypes.PyDLL(None) if ctypes is not None and members else None
    if not hasattr(library, "fegetenv"):
        return (lambda: None), (lambda modes: None)
    types: dict[int, Any] = {2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}

    class Environment(ctypes.Structure):
        _fields_ = tuple((one.name, types.get(one.size, ctypes.c_byte * one.size)) for one in members)

    get, put = library.fegetenv, library.fesetenv
    get.argtypes = put.argtypes = [ctypes.POINTER(Environment)]
    known = tuple((one.name, one.modes, one.default) for one in members if one.modes)

    def enter() -> Any:
        found = Environment()
        get(found)
        for name, modes, default in known:
            if getattr(found, name) & modes != default:
                break
        else:
            return None
        ours = Environment.from_buffer_copy(found)
        for name, modes, default in known:
            setattr(ours, name, getattr(ours, name) & ~modes | default)
        put(ours)
        return found

    return enter, put


_enter, _leave = _environment()

_modes = _enter()
try:
    # NumPy may keep results of arithmetic that it does at import.
    import numpy as np
finally:
    if _modes is not None:
        _leave(_modes)


# ---- for the rest of the package ----


class exact:
    """Run code with exact arithmetic: ``with exact():`` or ``@exact()``.

    Within it, this thread has the default modes of its processor (round to nearest, keep subnormals, no traps), and
    NumPy reports no errors. Both are restored at the end, also after an exception. It may be nested. It does not suit
    generators and coroutines, because they give control back in between. On systems other than Linux and macOS, and on
    processors other than x86-64 and ARM64, it only silences NumPy.
    """

    __slots__ = ("_errors", "_modes")

    def __enter__(self) -> None:
        self._errors = np.errstate(all="ignore")
        self._errors.__enter__()
        self._modes = _enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._modes is not None:
            _leave(self._modes)
        self._errors.__exit__(kind, error, at)

    def __call__(self, function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def within(*args: _P.args, **keywords: _P.kwargs) -> _T:
            with exact():
                return function(*args, **keywords)

        return within
