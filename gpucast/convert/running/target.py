# SPDX-License-Identifier: Apache-2.0
"""The target of a plan: whether it may be written, and whether a folder is written already."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Sequence

from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.core.places import status_of
from gpucast.files import FileError, file_limits
from gpucast.files.atomic import check_target, open_regular

#: In a written folder: the conversion that wrote it. A process that comes late sees that nothing is left to do.
_DONE = ".gpucast.json"


def check(plan: ConversionPlan, target: str, beside: Sequence[str]) -> None:
    """FileError or OSError if the resolved `target` cannot be written, or if something would be replaced that must
    stay. `beside` are the other files of a single target.
    """
    _check_place(target, plan.target)
    if plan.single:
        check_target(plan.target)
        if not plan.overwrite and status_of(target) is not None:
            raise FileError(f"{plan.target}: exists already; give --overwrite to replace it, or another name")
        for path in beside:
            if status_of(path) is not None:
                raise FileError(
                    f"{path}: exists, and the external data of {plan.target} would replace it; "
                    "remove it or choose another name"
                )
    else:
        check_empty(plan, target)
    needed = sum(map(_size, plan.files))
    free = shutil.disk_usage(os.path.dirname(target)).free
    if free < needed:
        raise FileError(
            f"{plan.target}: needs {needed:,} bytes, and {free:,} are free there; make room or choose another place"
        )


def check_empty(plan: ConversionPlan, target: str) -> None:
    """FileError if the resolved `target` is anything but a new or empty folder."""
    if status_of(target) is not None and not (os.path.isdir(target) and not os.listdir(target)):
        raise FileError(f"{plan.target}: exists already; expected a new or empty folder")


def mark(plan: ConversionPlan) -> tuple[str, str]:
    """The name and text of the file in a written folder that tells which conversion wrote it."""
    return _DONE, json.dumps(description(plan))


def description(plan: ConversionPlan) -> dict[str, str]:
    """What tells a conversion from others, and what people may want to know of it."""
    return {"fingerprint": plan.fingerprint, "source": plan.source, "target": plan.target}


def is_written(folder: str, fingerprint: str, names: Sequence[str]) -> bool:
    """Whether the conversion has written the folder, and all its files are there."""
    try:
        with open_regular(os.path.join(folder, _DONE)) as file:
            # Anybody may have made it.
            found = file_limits.parsed_json(file.read(file_limits.CONFIG).decode())["fingerprint"]
    except (FileNotFoundError, NotADirectoryError, FileError, ValueError, KeyError, TypeError):
        return False
    return bool(found == fingerprint) and all(
        status_of(os.path.join(folder, *name.split("/"))) is not None for name in names
    )


def _check_place(target: str, path: str) -> None:
    """Raise the errors that a rename to the resolved `target`, from beside it, would meet. They name `path`."""
    parent = os.path.dirname(target)
    number = 0
    if not os.path.isdir(parent):
        number = errno.ENOENT
    elif hasattr(os, "statvfs") and os.statvfs(parent).f_flag & os.ST_RDONLY:
        number = errno.EROFS
    elif not os.access(parent, os.W_OK | os.X_OK):
        number = errno.EACCES
    elif hasattr(os, "geteuid") and (folder := os.stat(parent)).st_mode & stat.S_ISVTX:
        # In such a folder only its owner, the entry's and root may rename or remove an entry.
        found = status_of(target)
        if found is not None and os.geteuid() not in (0, found.st_uid, folder.st_uid):
            number = errno.EPERM
    if number:
        raise OSError(number, os.strerror(number), path)
    if _is_mount_point(target):
        raise FileError(
            f"{path}: is a mount point, or a volume of its own, which nothing can take the place of; choose another "
            f"name, such as {os.path.join(path, os.path.basename(target))}"
            if os.path.isdir(target)
            else f"{path}: is mounted on its own, so that nothing can take its place; choose another name"
        )


def _is_mount_point(path: str) -> bool:
    """Whether a file system is mounted at a resolved path. Such a path cannot be replaced by a rename."""
    # Files may tell another device than their folder where none is mounted: an overlay's layers have theirs.
    if os.path.isdir(path) and os.path.ismount(path):
        return True
    # A part of the same file system may be mounted there: a container's volume.
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        points = (re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]) for line in mounts)
        return os.fsencode(path) in points
    return False


def _size(file: FilePlan) -> int:
    """The bytes of a written file without its header. Text counts as nothing."""
    return file.bytes_in if file.tensors is None else sum(tensor.bytes_out or 0 for tensor in file.tensors)
