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
    from gpucast.gpu import batch_on_gpu as batch_on_gpu
    from gpucast.gpu import cast_on_gpu as cast_on_gpu
    from gpucast.gpu import driver as driver
    from gpucast.gpu import fast_path as fast_path
    from gpucast.gpu import workspace as workspace
else:
    __getattr__ = packages.submodules(__name__, "batch_on_gpu", "cast_on_gpu", "driver", "fast_path", "workspace")

#: Called when another driver takes the place of the one in use: what was worked out with that one no longer holds.
ON_NEW_DRIVER: list[Callable[[], None]] = []
