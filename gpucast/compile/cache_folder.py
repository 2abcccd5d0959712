# SPDX-License-Identifier: Apache-2.0
"""The folders for what gpucast keeps between runs.

Environment: ``GPUCAST_CACHE_DIR``, the user's own folder; ``GPUCAST_CACHE_READ``, a further folder that is only read,
such as one with the kernels that were compiled into a container's image. Neither is used if anybody but this user and
root could have written to it (`gpucast.core.trusted_files`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from gpucast.core import trusted_files

#: What the folders hold.
KERNELS = "kernels"


def cache_folder() -> str:
    """``GPUCAST_CACHE_DIR``, or `gpucast` in the user's cache folder. It need not exist.

    If the chosen folder is writable by all and sticky, as /tmp is, each user has a subfolder named by the user id.
    """
    chosen = os.environ.get("GPUCAST_CACHE_DIR")
    if chosen:
        chosen = os.path.abspath(chosen)
        return os.path.join(chosen, str(os.geteuid())) if _is_shared(chosen) else chosen
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        return os.path.join(
            os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"), "gpucast", "Cache"
        )
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "gpucast")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "gpucast")


def read_folder(kind: str) -> str:
    """The folder of `kind` in ``GPUCAST_CACHE_READ``, or "" without one. It need not exist."""
    chosen = os.environ.get("GPUCAST_CACHE_READ")
    return os.path.join(os.path.abspath(chosen), kind) if chosen else ""


def problem(folder: str) -> str:
    """Why some or all of the files in a cache folder are not used; "" where all are used."""
    return trusted_files.problem(os.path.join(folder, KERNELS))


def _is_shared(folder: str) -> bool:
    if trusted_files.OWNERS_ARE_KNOWN:
        # A folder that is missing or unreadable is reported by the code that opens it.
        with contextlib.suppress(OSError):
            mode = os.stat(folder).st_mode
            return bool(mode & stat.S_ISVTX and mode & stat.S_IWOTH)
    return False


def writable(folder: str) -> bool:
    """Whether files can be written to the folder, or to a new folder of this path."""
    while not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        if os.path.lexists(folder) or parent == folder:
            return False
        folder = parent
    return os.access(folder, os.W_OK | os.X_OK)
