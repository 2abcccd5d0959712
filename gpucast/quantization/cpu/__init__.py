# SPDX-License-Identifier: Apache-2.0
"""Quantization of NumPy arrays."""
