# SPDX-License-Identifier: Apache-2.0
"""Weights stored as codes with scales: detects, reads and writes each style of storing them."""
