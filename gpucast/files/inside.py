# SPDX-License-Identifier: Apache-2.0
"""Names of files that another file gives: they may lead to files of its own folder alone."""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath, PureWindowsPath

from gpucast.files.tensor import FileError


def inside(folder: str, name: str, path: str, what: str) -> str:
    """The path of the regular file that `path` calls `name`, as its `what`; it must lie in `folder`.

    FileError for absolute names, names with "..", links that lead out of the folder (whatever is meant by them: a file
    that was downloaded must not choose what is read), missing files, and all that is no regular file.
    """
    said = f"{path}: {what} {name!r}"
    if not name or "\0" in name:
        raise FileError(f"{said} is no file name")
    # As both systems read it: a checkpoint is moved between them.
    for pure in (PurePosixPath(name), PureWindowsPath(name)):
        if pure.is_absolute() or pure.drive or pure.root or ".." in pure.parts:
            raise FileError(f"{said} leads out of the folder; expected the name of a file within it")
    found = os.path.join(folder, name)
    if not within(folder, found):
        raise FileError(f"{said} is a link that leads out of the folder, which is not followed")
    try:
        mode = os.stat(found).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(f"{said} is missing: there is no such file") from None
    if not stat.S_ISREG(mode):
        raise FileError(f"{said} is no regular file")
    return found


def within(folder: str, path: str) -> bool:
    """Whether the file behind all links is one of the folder."""
    real = os.path.realpath(folder)
    try:
        return os.path.commonpath([real, os.path.realpath(path)]) == real
    except ValueError:
        # On different drives.
        return False
