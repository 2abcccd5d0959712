# SPDX-License-Identifier: Apache-2.0
"""Casts on the host, and the cost of a call."""
