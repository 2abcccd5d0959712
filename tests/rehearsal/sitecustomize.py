# SPDX-License-Identifier: Apache-2.0
"""Python runs this at the start of every process that has this folder on PYTHONPATH: see stand_ins.py."""

from __future__ import annotations

import os
import traceback

try:
    import stand_ins

    stand_ins.install()
except BaseException:
    # Python would go on without them.
    traceback.print_exc()
    os._exit(97)
