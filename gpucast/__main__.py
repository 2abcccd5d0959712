# SPDX-License-Identifier: Apache-2.0
"""``python -m gpucast``: the same as the `gpucast` command."""

import sys

from gpucast.cli import main

sys.exit(main())
