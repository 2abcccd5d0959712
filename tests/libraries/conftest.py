# SPDX-License-Identifier: Apache-2.0
"""CuPy is loaded before any test: PyTorch 2.9's compiler goes through `sys.modules`, and fails if CuPy is first
imported meanwhile."""

from __future__ import annotations

import host_driver  # noqa: F401
