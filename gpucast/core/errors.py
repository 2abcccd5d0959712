# SPDX-License-Identifier: Apache-2.0
"""The exception that any part of gpucast may raise."""

from __future__ import annotations


class DeviceUnavailable(RuntimeError):
    """A cast was asked for on a GPU that cannot do it here. The message says why and what mends it."""
