# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.core.places import replaced, resolved, status_of
from gpucast.files.tensor import FileError


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends well.

    Until then it is a temporary file in the same folder; after any error, a full disk and Ctrl-C included, it is
    removed, and what was at `path` is as before. An OSError names `path`.
    """
    # A link keeps pointing where it does: the file behind it is replaced.
    target = resolved(path)
    check_target(path)
    with _naming(path), replaced(target, 0o600) as file:
        yield file
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode_of(target))


def check_target(path: str) -> None:
    """FileError where `path` is no file that can be replaced; PermissionError where it is protected from writing."""
    if status_of(path) is None:
        return
    target = resolved(path)
    found = status_of(target)
    if found is None:
        # A link to what is not there yet.
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
        raise OSError(error.errno, error.strerror or str(error), path) from error


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
