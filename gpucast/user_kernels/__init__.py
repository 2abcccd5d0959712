# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels that users write: expressions, device functions, Numba and Triton.

The module for devices is loaded at the first device array, as `gpucast.casting.cuda` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.user_kernels import ufunc_cuda as ufunc_cuda
else:
    __getattr__ = packages.submodules(__name__, "ufunc_cuda")
