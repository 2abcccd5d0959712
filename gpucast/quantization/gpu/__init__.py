# SPDX-License-Identifier: Apache-2.0
"""Quantization of arrays on a device."""
