# SPDX-License-Identifier: Apache-2.0
"""Loss scales, tree selection and fake casts on devices. Loaded at the first device array, as `casting.cuda` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.mixed.cuda import fake as fake
    from gpucast.mixed.cuda import kernels as kernels
else:
    __getattr__ = packages.submodules(__name__, "fake", "kernels")
