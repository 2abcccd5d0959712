# SPDX-License-Identifier: Apache-2.0
"""The folder for what gpucast keeps between runs."""

from __future__ import annotations

import os
import sys


def cache_folder() -> str:
    """``GPUCAST_CACHE_DIR``, or `gpucast` in the user's cache folder. It need not exist."""
    chosen = os.environ.get("GPUCAST_CACHE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        return os.path.join(
            os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"), "gpucast", "Cache"
        )
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "gpucast")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "gpucast")


def writable(folder: str) -> bool:
    """Whether files can be put there, after the folder is made if need be."""
    while not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        if os.path.lexists(folder) or parent == folder:
            return False
        folder = parent
    return os.access(folder, os.W_OK | os.X_OK)
