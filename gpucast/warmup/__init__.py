# SPDX-License-Identifier: Apache-2.0
"""Compiling kernels ahead of time."""

from gpucast.warmup.compile_ahead import warmup

__all__ = ["warmup"]
