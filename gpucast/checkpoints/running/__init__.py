# SPDX-License-Identifier: Apache-2.0
"""Conversions at work: files staged, resumed, verified, shared among machines."""
