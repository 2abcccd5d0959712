# SPDX-License-Identifier: Apache-2.0
"""Counts and measures of what conversions lose."""
