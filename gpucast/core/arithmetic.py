# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that gives the same bits in every thread.

Whoever else works in a thread may have changed how its processor computes: XLA's threads and
``torch.set_flush_denormal(True)`` make subnormals zeros (FTZ and DAZ on x86, FZ on ARM), others round upward or trap.
NumPy's error state is the thread's as well. None of it changes a result of ours, and nothing that was computed
otherwise is kept: whatever computes with floats on the host, at a public door or for a table, does so within `exact`.

Integers need none of this. Python's own floats do: ``float(text)``, ``repr``, ``math.ldexp``, ``x == 0`` and the hash
of a float give other results where subnormals are flushed or numbers are rounded upward.
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

# ---- the modes of a thread, which nothing else reads or sets ----


class _Member(NamedTuple):
    """A member of C's fenv_t: how many bytes it has, which of its bits are modes, and what these are by default. All
    other bits tell of what has happened."""

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
    """Two functions. One sets the default modes of this thread and returns what they were, None where they were the
    default; the other sets what the first one returned.

    On other systems and processors they do nothing: how to set the modes there is not known.
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
    # NumPy, too, may keep what it computes as it is imported.
    import numpy as np
finally:
    if _modes is not None:
        _leave(_modes)


# ---- what is ours ----


class exact:
    """``with exact():`` or ``@exact()``: within, this thread has the default modes of its processor (round to nearest,
    subnormals kept, no traps) and NumPy reports no errors. Afterwards both are as before, also after an exception.

    It may be nested. Not for generators and coroutines, which give control back in between. On other systems than Linux
    and macOS, and other processors than x86-64 and ARM64, only NumPy's errors are off.
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
