# SPDX-License-Identifier: Apache-2.0
"""Loss scales and tree selection on a device. Loaded at the first device array, as `gpucast.casting.cuda` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.mixed.gpu import kernels as kernels
else:
    __getattr__ = packages.submodules(__name__, "kernels")
