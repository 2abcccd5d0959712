# SPDX-License-Identifier: Apache-2.0
"""Compiling kernels ahead of time."""
