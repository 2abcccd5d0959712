# SPDX-License-Identifier: Apache-2.0
"""Loads a library of the host and checks it before it is used.

A library runs code when it is loaded: one that was linked with -ffast-math makes the processor treat subnormal numbers
as zero from then on, in NumPy too. So the state of the floating-point unit is saved before and restored afterwards, and
a library that changed it is rejected, as is one that lacks a function. The results of its functions are checked by
their callers, for each rule and format.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence

import numpy as np

#: More than any system's `fenv_t`.
_ENVIRONMENT_BYTES = 512


class Unfit(OSError):
    """A library that must not be used. The message says why."""


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
    """The floating-point environment of this thread, as the C library represents it; None where it is not available."""
    try:
        ask = ctypes.CDLL(None).fegetenv
    except (AttributeError, OSError, TypeError):
        return None
    environment = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    return environment if ask(environment) == 0 else None


def _control(environment: ctypes.Array[ctypes.c_char] | None) -> bytes:
    """The control part of an environment, without the exception flags of past operations.

    It is MXCSR of x86 without its six flags, or FPCR of Arm. It is "" where the layout is not known; there only
    `_behaviour` reveals a change.
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
    """The bits of sums and products that depend on the rounding mode and on whether subnormal numbers are kept."""
    with np.errstate(all="ignore"):
        single = np.array([2.0**-149, 2.0**-126, -(2.0**-127), 1.0, -1.0], np.float32)
        double = np.array([2.0**-1074, 2.0**-1022, -(2.0**-1023), 1.0, -1.0])
        found = [
            x * x.dtype.type(factor) + x.dtype.type(addend)
            for x in (single, double)
            for factor, addend in ((1, 0), (0.5, 0), (1, 2.0**-30), (1, -(2.0**-60)))
        ]
    return b"".join(y.tobytes() for y in found)
