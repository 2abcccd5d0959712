# SPDX-License-Identifier: Apache-2.0
"""What lies at a path.

"Not there" is what the system says, never what could not be found out: a disk or server that fails (EIO, ESTALE) and a
folder that may not be looked into (EACCES) are errors.
"""

from __future__ import annotations

import contextlib
import os
import stat


def status_of(path: str, at: int | None = None) -> os.stat_result | None:
    """What lies at a path, links not followed; None where nothing does. OSError where that cannot be told.

    `at` is the descriptor of the folder that a relative path begins in.
    """
    try:
        return os.stat(path, dir_fd=at, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def resolved(path: str) -> str:
    """The absolute path behind all links, of which the last part need not exist. OSError where it cannot be told."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.realpath(path, strict=True)
    folder, name = os.path.split(path.rstrip(os.sep + (os.altsep or "")))
    if name in ("", os.curdir, os.pardir):
        return os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder = os.path.realpath(folder or os.curdir, strict=True)
        last = os.path.join(folder, name)
        found = status_of(last)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return last
        # A link to what is not there yet. (One that leads to itself is an error above.)
        return resolved(os.path.join(folder, os.readlink(last)))
    return os.path.realpath(path)


def close_quietly(handle: int) -> None:
    """For finalizers: close a descriptor through which nothing was written, of which an error says nothing."""
    with contextlib.suppress(OSError):
        os.close(handle)
