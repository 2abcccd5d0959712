# SPDX-License-Identifier: Apache-2.0
"""Other users of the machine, who own files and exchange them while ours are read."""

from __future__ import annotations

import os

import pytest

#: Another user, for whom root can leave files.
STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
