# SPDX-License-Identifier: Apache-2.0
"""Casts of arrays on a device. Modules that need a GPU are loaded only here.

They are imported at the first array on a device, so that ``import gpucast`` stays quick and needs neither CuPy nor a
compiler. `gpucast.gpu.devices` is loaded at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.gpu import batch as batch
    from gpucast.gpu import cast as cast
    from gpucast.gpu import driver as driver
    from gpucast.gpu import fast_path as fast_path
else:
    __getattr__ = packages.submodules(__name__, "batch", "cast", "driver", "fast_path")

#: Called when another driver takes the place of the one in use: what was worked out with that one no longer holds.
ON_NEW_DRIVER: list[Callable[[], None]] = []
