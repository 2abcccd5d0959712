# SPDX-License-Identifier: Apache-2.0
"""The host's compiled library, made of the kernels' own text. Its modules are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.native import batch as batch
    from gpucast.native import calls as calls
    from gpucast.native import cast as cast
    from gpucast.native import fused as fused
    from gpucast.native import stochastic as stochastic
    from gpucast.native import threads as threads
else:
    __getattr__ = packages.submodules(__name__, "batch", "calls", "cast", "fused", "stochastic", "threads")
