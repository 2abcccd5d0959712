# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that does not depend on its caller: on the processor's modes, and on NumPy's error state.

Other libraries make threads flush subnormal numbers (XLA's callbacks, ``torch.set_flush_denormal``), and programs
choose how numbers are rounded. A function that is `exactly` rounds to nearest, keeps subnormal numbers, and neither
traps nor warns; so no table that is computed once and kept depends on the thread that came first.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: More than any system's `fenv_t`.
_ENVIRONMENT_BYTES = 512


def _of_module() -> tuple[Callable[[], Any], Callable[[Any], Any], Any]:
    """What tells the modes of this thread, what sets them, and the modes that arithmetic has here."""
    if os.environ.get("GPUCAST_NO_HOST") == "1":
        return _of_library()
    try:
        from gpucast import _host
    except ImportError:
        return _of_library()
    return _host.modes, _host.set_modes, _host.EXACT_MODES


def _of_library() -> tuple[Callable[[], Any], Callable[[Any], Any], Any]:
    """The same by the C library, whose default environment has the modes that are wanted."""
    try:
        library = ctypes.CDLL(None)
        ask, put = library.fegetenv, library.fesetenv
    except (AttributeError, OSError, TypeError):
        # Nothing is known of this system's modes; most threads have the usual ones.
        return (lambda: None), (lambda modes: None), None
    # FE_DFL_ENV of the C libraries of Linux; macOS has an object of that name.
    try:
        usual: Any = ctypes.byref(ctypes.c_char.in_dll(library, "_FE_DFL_ENV"))
    except ValueError:
        usual = ctypes.c_void_p(-1)

    def modes() -> Any:
        environment = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
        ask(environment)
        return environment

    return modes, put, usual


_modes, _set_modes, _EXACT = _of_module()


def exactly(function: _Function) -> _Function:
    """The function, whatever modes and NumPy error state its caller has, who has them again afterwards."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        before = _modes()
        if before != _EXACT:
            _set_modes(_EXACT)
        try:
            with np.errstate(all="ignore"):
                return function(*arguments, **keywords)
        finally:
            if before != _EXACT:
                _set_modes(before)

    return run  # type: ignore[return-value]
