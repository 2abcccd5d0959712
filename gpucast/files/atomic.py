# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.core.places import resolved, status_of
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
    folder, name = os.path.split(target)
    with _naming(path):
        # Named before it is made, so that it is removed even if Ctrl-C comes as soon as it is there.
        temporary = os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}.tmp")
        try:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with closing(open(handle, "wb", buffering=1 << 20)) as file:
                yield file
                file.flush()
                if hasattr(os, "fchmod"):
                    os.fchmod(handle, mode_of(target))
                os.fsync(handle)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    sync_folder(folder)


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


@contextlib.contextmanager
def closing(file: BinaryIO) -> Iterator[BinaryIO]:
    """Close the file when the block ends; after an error what cannot be written is not told again."""
    try:
        yield file
    except BaseException:
        # Closing flushes, which fails again on a full disk.
        with contextlib.suppress(OSError):
            file.close()
        raise
    file.close()


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


def sync_folder(folder: str) -> None:
    """Make the new name last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
