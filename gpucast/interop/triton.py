# SPDX-License-Identifier: Apache-2.0
"""Casts in kernels of Triton, under its public name; it is `gpucast.user_kernels.triton`."""

from gpucast.user_kernels.triton import decode, encode

__all__ = ["decode", "encode"]
