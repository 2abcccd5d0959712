# SPDX-License-Identifier: Apache-2.0
"""Looks at paths, and makes files that appear whole or not at all: written beside the path, renamed last.

"Not there" is what the system says, never what could not be found out: a disk or server that fails (EIO, ESTALE) and a
folder that may not be looked into (EACCES) are errors.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

#: What the names of files end in that are not complete.
TEMPORARY = ".tmp"


def status_of(path: str) -> os.stat_result | None:
    """The status of a path without following links, or None if there is nothing. OSError if it cannot be found out."""
    try:
        return os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def resolved(path: str) -> str:
    """The absolute path behind all links; its last part need not exist. OSError if it cannot be found."""
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
        # A link to a file that is not there yet. (One that leads to itself is an error above.)
        return resolved(os.path.join(folder, os.readlink(last)))
    return os.path.realpath(path)


def close_quietly(handle: int) -> None:
    """For finalizers: close a descriptor that nothing was written to, and ignore errors."""
    with contextlib.suppress(OSError):
        os.close(handle)


@contextlib.contextmanager
def replaced(target: str, mode: int, is_durable: bool = True) -> Iterator[BinaryIO]:
    """A new file of the permissions `mode`, to which the umask applies, that takes the place of `target` when the block
    ends well; through a power cut too if it `is_durable`. After any error it is removed, and `target` is as before.
    """
    folder, name = os.path.split(target)
    # Named before it is made, so that it is removed even if Ctrl-C comes as soon as it is there.
    temporary = os.path.join(folder, f".{name[:50]}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        with closing(open(handle, "wb", buffering=1 << 20)) as file:
            yield file
            file.flush()
            if is_durable:
                os.fsync(handle)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if is_durable:
        sync_folder(folder)


@contextlib.contextmanager
def durable(path: str) -> Iterator[BinaryIO]:
    """A file that is written anew where nobody looks yet; it has come to the disk when the block ends."""
    with closing(open(path, "wb", buffering=1 << 20)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def closing(file: BinaryIO) -> Iterator[BinaryIO]:
    """Close the file when the block ends. After an error in the block, an error of closing is dropped."""
    try:
        yield file
    except BaseException:
        # Closing flushes, which fails again on a full disk.
        with contextlib.suppress(OSError):
            file.close()
        raise
    file.close()


def sync_folder(folder: str) -> None:
    """Make new names in a folder last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
