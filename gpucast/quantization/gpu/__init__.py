# SPDX-License-Identifier: Apache-2.0
"""Quantization on a device. Loaded at the first device array, as `gpucast.casting.cuda` is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucast.core import packages

if TYPE_CHECKING:
    from gpucast.quantization.gpu import grouped_on_gpu as grouped_on_gpu
    from gpucast.quantization.gpu import hadamard_on_gpu as hadamard_on_gpu
    from gpucast.quantization.gpu import quantize_on_gpu as quantize_on_gpu
    from gpucast.quantization.gpu import tiles as tiles
else:
    __getattr__ = packages.submodules(__name__, "grouped_on_gpu", "hadamard_on_gpu", "quantize_on_gpu", "tiles")
