# SPDX-License-Identifier: Apache-2.0
"""The host's C library is loaded, and tried before anybody uses it.

A library runs code when it is loaded: one that was linked with -ffast-math makes the processor take subnormal numbers
for zero from then on, in NumPy too. So the state of the processor's floating-point unit is noted before and put back
after, and a library that changed it is none. Neither is one that lacks a function. What the functions compute is
judged where they are called from, by rule and format.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence

import numpy as np

#: More than any system's `fenv_t`.
_ENVIRONMENT_BYTES = 512


class Unfit(OSError):
    """A library that is not to be used. The message says why."""


def load(path: str, functions: Sequence[str]) -> ctypes.CDLL:
    """The library at `path`, which has all `functions`. `Unfit`, or OSError where it is no library."""
    before, behaviour = _environment(), _behaviour()
    try:
        library = ctypes.CDLL(path)
        after = _environment()
        if _control(before) != _control(after) or behaviour != _behaviour():
            raise Unfit("loading it changes how the processor rounds, or that it keeps subnormal numbers")
    finally:
        if before is not None:
            ctypes.CDLL(None).fesetenv(before)
    missing = [name for name in functions if not hasattr(library, name)]
    if missing:
        raise Unfit(f"it lacks {', '.join(missing)}")
    return library


def _environment() -> ctypes.Array[ctypes.c_char] | None:
    """The floating-point environment of this thread, as the C library keeps it; None where there is no asking."""
    try:
        ask = ctypes.CDLL(None).fegetenv
    except (AttributeError, OSError, TypeError):
        return None
    environment = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    return environment if ask(environment) == 0 else None


def _control(environment: ctypes.Array[ctypes.c_char] | None) -> bytes:
    """The part of an environment that says how the processor computes, without what it noted of past operations.

    MXCSR of x86 but for its six flags, and FPCR of Arm; "" where the layout is not known, where `_behaviour` tells.
    """
    if environment is None:
        return b""
    system, machine, raw = platform.system(), platform.machine(), environment.raw
    if machine in ("x86_64", "AMD64") and system in ("Linux", "Darwin"):
        at = 28 if system == "Linux" else 4
        return (int.from_bytes(raw[at : at + 4], "little") & ~0x3F).to_bytes(4, "little")
    if machine == "aarch64" and system == "Linux":
        return raw[:4]
    if machine == "arm64" and system == "Darwin":
        return raw[8:16]
    return b""


def _behaviour() -> bytes:
    """Bits of sums and products that depend on rounding, and on what becomes of subnormal numbers."""
    with np.errstate(all="ignore"):
        single = np.array([2.0**-149, 2.0**-126, -(2.0**-127), 1.0, -1.0], np.float32)
        double = np.array([2.0**-1074, 2.0**-1022, -(2.0**-1023), 1.0, -1.0])
        found = [
            x * x.dtype.type(factor) + x.dtype.type(addend)
            for x in (single, double)
            for factor, addend in ((1, 0), (0.5, 0), (1, 2.0**-30), (1, -(2.0**-60)))
        ]
    return b"".join(y.tobytes() for y in found)
