# SPDX-License-Identifier: Apache-2.0
"""Opens regular files; checks names of files that come from another file: they may only lead into the same folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import PurePosixPath, PureWindowsPath
from typing import BinaryIO

from gpucast.files.tensor import FileError


def inside(folder: str, name: str, path: str, what: str, beside: str | None = None) -> str:
    """The path of the regular file `name` in `folder`. Errors say that `path` names it, and as what (`what`).

    FileError for absolute names, names with "..", links that lead out of the folder, missing files and everything that
    is not a regular file. A downloaded file must not be able to choose which files are read. `beside` is one more
    folder that links may lead to.
    """
    context = f"{path}: {what} {name!r}"
    if not name or "\0" in name:
        raise FileError(f"{context} is no file name")
    # Checked by the rules of both systems, since checkpoints are moved between them.
    for pure in (PurePosixPath(name), PureWindowsPath(name)):
        if pure.is_absolute() or pure.drive or pure.root or ".." in pure.parts:
            raise FileError(f"{context} leads out of the folder; expected the name of a file within it")
    full = os.path.join(folder, name)
    if not (within(folder, full) or (beside is not None and within(beside, full))):
        raise FileError(
            f"{context} is a link that leads out of the folder, which is not followed; `cp -rL` makes a folder of files"
        )
    try:
        mode = os.stat(full).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(f"{context} is missing: there is no such file") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileError(f"{context} is too long for the name of a file") from None
        raise
    if not stat.S_ISREG(mode):
        raise FileError(f"{context} is no regular file")
    return full


def within(folder: str, path: str) -> bool:
    """Whether `path`, with all links resolved, lies in the folder."""
    real = os.path.realpath(folder)
    try:
        return os.path.commonpath([real, os.path.realpath(path)]) == real
    except (ValueError, RecursionError):
        # The two are on different drives; or more links lead on from one another than any system follows.
        return False


def open_regular(path: str) -> BinaryIO:
    """A file, open for reading. What is checked is what is open: a pipe would wait for its other end.

    FileError for what is no regular file, OSError.
    """
    # Some of it cannot be opened at all.
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileError(f"{path}: is no regular file")
    file = open(path, "rb", opener=_at_once)
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileError(f"{path}: is no regular file")
    except BaseException:
        file.close()
        raise
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
