# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of Numba, under its public name; it is `gpucast.user_kernels.numba`."""

from gpucast.user_kernels.numba import cast

__all__ = ["cast"]
