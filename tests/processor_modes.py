# SPDX-License-Identifier: Apache-2.0
"""Sets the floating-point modes of this thread as other libraries do: subnormals flushed, another rounding."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import numpy as np

#: FTZ and DAZ of x86's MXCSR, FZ of Arm's FPCR; where each has the rounding mode; where it is in a `fenv_t` of Linux.
_FLUSHES, _ROUNDING, _AT = (0x8040, 13, 28) if platform.machine() in ("x86_64", "AMD64") else (1 << 24, 22, 0)
#: Every one that programs meet: (whether subnormals are flushed, the rounding mode: 0 is to nearest).
MODES = [(flushes, rounding) for flushes in (True, False) for rounding in range(4) if flushes or rounding]


@contextlib.contextmanager
def modes(flushes: bool, rounding: int) -> Iterator[None]:
    """Set the modes of this thread for the length of a ``with`` block."""
    library = ctypes.CDLL(None)
    before, there = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512)
    library.fegetenv(before)
    library.fegetenv(there)
    word = int.from_bytes(there.raw[_AT : _AT + 4], "little")
    word = word & ~(_FLUSHES | 3 << _ROUNDING) | (_FLUSHES if flushes else 0) | rounding << _ROUNDING
    there[_AT : _AT + 4] = word.to_bytes(4, "little")
    library.fesetenv(there)
    try:
        yield
    finally:
        library.fesetenv(before)


def is_set() -> bool:
    """Whether this thread flushes subnormals, or rounds in a direction."""
    with np.errstate(all="ignore"):
        tiny = np.float32([2.0**-126]) * np.float32(0.5)
        sums = np.float64([1.0, -1.0]) + np.float64([[2.0**-60], [-(2.0**-60)]])
    return bool(tiny.view(np.uint32)[0] == 0 or (np.abs(sums) != 1).any())
