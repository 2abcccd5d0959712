# SPDX-License-Identifier: Apache-2.0
"""Compares two checkpoints by the numbers that their tensors stand for."""
