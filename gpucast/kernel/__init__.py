# SPDX-License-Identifier: Apache-2.0
"""Kernels: their text, their machine code, and their launches. What needs a GPU is loaded only here.

The driver is imported at the first array on a device, so that ``import gpucast`` stays quick and needs neither CuPy nor
a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.kernel import driver as driver
    from gpucast.kernel import recording as recording
else:
    __getattr__ = packages.submodules(__name__, "driver", "recording")

#: Called when another driver takes the place of the one in use: what was worked out with that one no longer holds.
ON_NEW_DRIVER: list[Callable[[], None]] = []
