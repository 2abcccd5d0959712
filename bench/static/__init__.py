# SPDX-License-Identifier: Apache-2.0
"""Estimates from machine code, without a GPU."""
