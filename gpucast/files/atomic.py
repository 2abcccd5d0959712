# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all. Opens regular files; a name that comes from another file may only lead into
the folder of that file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import BinaryIO

from gpucast.core.errors import reason_of
from gpucast.core.places import replaced, resolved, status_of
from gpucast.files.tensor import FileError


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file that replaces `path` when the block ends without an error.

    Until then it is a temporary file in the same folder. After any error, such as a full disk or Ctrl-C, it is removed,
    and `path` is unchanged. An OSError names `path`.
    """
    # A link keeps pointing where it does: the file behind it is replaced.
    target = resolved(path)
    check_target(path)
    with _naming(path), replaced(target, 0o600) as file:
        yield file
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode_of(target))


def check_target(path: str) -> None:
    """FileError if `path` cannot be replaced because it is not a regular file; PermissionError if it is
    write-protected.
    """
    if status_of(path) is None:
        return
    target = resolved(path)
    found = status_of(target)
    if found is None:
        # A link to a file that is not there yet.
        return
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path}: is no regular file, and only such can be written")
    # Taking its place needs no right to write it: the folder's is enough.
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of the system speak of the temporary file, or of none: let them speak of the file that was asked for."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise OSError(error.errno, reason_of(error), path) from error


def mode_of(target: str) -> int:
    """The permissions of the old file, or those that a plain ``open`` would give.

    Not its set-user-id and set-group-id bits, which writing to a file clears too.
    """
    try:
        return stat.S_IMODE(os.stat(target).st_mode) & 0o777
    except FileNotFoundError:
        return new_mode()


def new_mode() -> int:
    """The permissions that a plain ``open`` gives a new file.

    The umask can only be asked for by setting it, for all threads: files that others make meanwhile would get it. So it
    is read where the system shows it, else from a file that is made for that.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return 0o666 & ~int(line.split()[1], 8)
    with tempfile.TemporaryDirectory(prefix="gpucast-") as folder:
        handle = os.open(os.path.join(folder, "new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            return stat.S_IMODE(os.fstat(handle).st_mode)
        finally:
            os.close(handle)


def inside(folder: str, name: str, path: str, what: str, beside: str | None = None) -> str:
    """The path of the regular file `name` in `folder`. Errors say that `path` names it, and as what (`what`).

    FileError for absolute names, names with "..", links that lead out of the folder, missing files and everything that
    is not a regular file. A downloaded file must not be able to choose which files are read. `beside` is one more
    folder that links may lead to.
    """
    context = f"{path}: {what} {name!r}, which"
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
        raise FileError(f"{context} is missing; expected it in {folder}") from None
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
    """Open a regular file for reading. The open file is checked, so no pipe waits for its other end.

    FileError if it is no regular file, OSError.
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
