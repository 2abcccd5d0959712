# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: written beside, renamed last."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO

#: What the names of files end in that are not complete.
TEMPORARY = ".tmp"


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


def sync_folder(folder: str) -> None:
    """Make new names in a folder last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
