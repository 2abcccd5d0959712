# SPDX-License-Identifier: Apache-2.0
"""Counts and measures the losses of conversions."""
