# SPDX-License-Identifier: Apache-2.0
"""The public casts. The modules for arrays on devices are imported at the first of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.casting import cuda as cuda
    from gpucast.casting import cuda_launches as cuda_launches
else:
    __getattr__ = packages.submodules(__name__, "cuda", "cuda_launches")
