# SPDX-License-Identifier: Apache-2.0
"""Compiling ahead of time: which kernels there are, and making them."""
