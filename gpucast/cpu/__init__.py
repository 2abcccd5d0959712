# SPDX-License-Identifier: Apache-2.0
"""Casts of NumPy arrays."""
