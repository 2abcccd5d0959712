# SPDX-License-Identifier: Apache-2.0
"""Quantization on a device. Loaded at the first device array, as `gpucast.casting.cuda` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.quantization.cuda import grouped as grouped
    from gpucast.quantization.cuda import hadamard as hadamard
    from gpucast.quantization.cuda import quantize as quantize
    from gpucast.quantization.cuda import tiles as tiles
else:
    __getattr__ = packages.submodules(__name__, "grouped", "hadamard", "quantize", "tiles")
