# SPDX-License-Identifier: Apache-2.0
"""Whether a result can take its place by a rename, and has room there: told before any work is done."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Sequence

from gpucast.checkpoints.planning.plan import FilePlan
from gpucast.core.places import status_of
from gpucast.files import FileError


def check_place(target: str, path: str) -> None:
    """Errors that a rename to the resolved `target`, from beside it, would meet; `path` is what they name.

    FileNotFoundError where its folder is missing, PermissionError and OSError where it cannot be written, FileError
    for a mount point, which nothing can take the place of.
    """
    parent = os.path.dirname(target)
    try:
        folder = os.stat(parent)
    except (FileNotFoundError, NotADirectoryError):
        folder = None
    if folder is None or not stat.S_ISDIR(folder.st_mode):
        raise _error(errno.ENOENT, path)
    if hasattr(os, "statvfs") and os.statvfs(parent).f_flag & os.ST_RDONLY:
        raise _error(errno.EROFS, path)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, path)
    status = status_of(target)
    if status is None:
        return
    if is_mount_point(target, status, folder):
        raise FileError(
            f"{path}: is a mount point, or a volume of its own, which nothing can take the place of; choose another "
            f"name, such as {os.path.join(path, os.path.basename(target))}"
            if stat.S_ISDIR(status.st_mode)
            else f"{path}: is mounted on its own, so that nothing can take its place; choose another name"
        )
    if hasattr(os, "geteuid") and folder.st_mode & stat.S_ISVTX:
        # In such a folder only its owner, the entry's and root may rename or remove an entry.
        user = os.geteuid()
        if user not in (0, status.st_uid, folder.st_uid):
            raise _error(errno.EPERM, path)


def check_space(target: str, files: Sequence[FilePlan], path: str) -> None:
    """FileError where the file system of the resolved `target` has less room than `files` will take; `path` is what it
    names. Text counts as nothing."""
    needed = sum(_size(file) for file in files)
    free = shutil.disk_usage(os.path.dirname(target)).free
    if free < needed:
        raise FileError(
            f"{path}: needs {needed:,} bytes, and {free:,} are free there; make room or choose another place"
        )


def _size(file: FilePlan) -> int:
    """The bytes of a written file, without its header."""
    if file.tensors is None:
        return file.bytes_in
    return sum(tensor.bytes_out or 0 for tensor in file.tensors)


def is_mount_point(path: str, status: os.stat_result, folder: os.stat_result) -> bool:
    """Whether something is mounted at a resolved path; `status` and `folder` are of what is there and of its folder."""
    # Files may tell another device than their folder where none is mounted: an overlay's layers have theirs.
    if stat.S_ISDIR(status.st_mode) and status.st_dev != folder.st_dev:
        return True
    # A part of the same file system may be mounted there: a container's volume.
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        return any(_unescaped(line.split()[4]) == os.fsencode(path) for line in mounts)
    return False


def _unescaped(path: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
