# SPDX-License-Identifier: Apache-2.0
"""Weights stored as codes with scales: every style of storing them, read and written."""
