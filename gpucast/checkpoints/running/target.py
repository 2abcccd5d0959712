# SPDX-License-Identifier: Apache-2.0
"""The target of a plan: whether it may be written, whether it is written, and how finished files get there.

A folder gets its place by one rename. The files of a single target, a model and its external data, need several
renames. The job lists them first; after a kill the next start continues the list, and the last rename counts.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.partial import FILES, Job, Partial, is_mount_point
from gpucast.core.places import durable, status_of, sync_folder
from gpucast.files import FileError, file_limits
from gpucast.files.atomic import check_target, open_regular

#: In a written folder: the conversion that wrote it. A process that comes late sees that nothing is left to do.
_DONE = ".gpucast.json"


class Target:
    """The target that the finished files of `partial` go to."""

    def __init__(self, plan: ConversionPlan, partial: Partial) -> None:
        self.path = partial.target
        self._plan, self._partial = plan, partial
        self._parent, self._place = os.path.split(self.path)
        self._names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]

    def check(self) -> None:
        """FileError or OSError if the target cannot be written, or if something would be replaced that must stay."""
        target, plan = self.path, self._plan
        _check_place(target, plan.target)
        if plan.single:
            check_target(plan.target)
            if not plan.overwrite and status_of(target) is not None:
                raise FileError(f"{plan.target}: exists already; give --overwrite to replace it, or another name")
            for name in self._names[:-1]:
                if status_of(self._placed(name)) is not None:
                    raise FileError(
                        f"{self._placed(name)}: exists, and the external data of {plan.target} would replace it; "
                        "remove it or choose another name"
                    )
        elif status_of(target) is not None and not (os.path.isdir(target) and not os.listdir(target)):
            raise FileError(f"{plan.target}: exists already; expected a new or empty folder")
        needed = sum(map(_size, plan.files))
        free = shutil.disk_usage(self._parent).free
        if free < needed:
            raise FileError(
                f"{plan.target}: needs {needed:,} bytes, and {free:,} are free there; make room or choose another place"
            )

    def file(self, file: FilePlan) -> str:
        """The path of one of its files."""
        return self.path if self._plan.single else os.path.join(self.path, *file.name.split("/"))

    def is_written(self, job: Job | None) -> bool:
        """Whether all files are there. `job` is the job of unfinished work for the target, if there is any."""
        if self._plan.single:
            return job is not None and job.publishing is not None and all(map(self._is_placed, job.publishing.items()))
        return _done_mark(self.path) == self._plan.fingerprint and all(
            status_of(os.path.join(self.path, *name.split("/"))) is not None for name in self._names
        )

    def is_begun(self, job: Job) -> bool:
        """Whether at least one of its files is there."""
        return job.publishing is not None and any(map(self._is_placed, job.publishing.items()))

    def job(self, publishing: dict[str, tuple[int, int]] | None = None) -> Job:
        """The job of unfinished work for the target."""
        return Job(self._plan.fingerprint, {"source": self._plan.source, "target": self._plan.target}, publishing)

    def publish(self) -> None:
        """Move finished files to their places. The caller holds the lock alone. FileError if a file is missing."""
        if self._plan.single:
            publishing = {name: self._known(name) for name in self._names}
            self._partial.write(self.job(publishing))
            self.complete(publishing)
            return
        mark = json.dumps(self.job().paths | {"fingerprint": self._plan.fingerprint})
        for name, text in (*self._plan.indexes, (_DONE, mark)):
            with durable(self._partial.made(f"{FILES}/{name}")) as file:
                file.write(text.encode())
            sync_folder(os.path.dirname(self._finished(name)))
        for name in self._names:
            self._known(name)
        if os.name == "nt" and os.path.isdir(self.path):
            # Windows replaces no folder, not even an empty one.
            os.rmdir(self.path)
        os.replace(self._partial.file(FILES), self.path)
        sync_folder(self._parent)

    def complete(self, publishing: dict[str, tuple[int, int]]) -> None:
        """Move the listed files that are not in their places yet."""
        for name, known in publishing.items():
            place, is_there = self._placed(name), self._is_placed((name, known))
            if not is_there and status_of(self._finished(name)) is None:
                raise FileError(
                    f"{place}: was being written, and is neither there nor in {self._partial.path} as it was; "
                    "give --restart to begin anew"
                )
            may_replace = name == self._names[-1] and self._plan.overwrite
            if not is_there and not may_replace and status_of(place) is not None:
                raise FileError(f"{place}: exists, and would be replaced; remove it or choose another name")
        for name in publishing:
            if status_of(self._finished(name)) is not None:
                os.replace(self._finished(name), self._placed(name))
        sync_folder(self._parent)

    def _placed(self, name: str) -> str:
        """The place of a file of a single target, whose name may differ from its name in the plan."""
        return os.path.join(self._parent, self._place if name == self._names[-1] else name)

    def _is_placed(self, result: tuple[str, tuple[int, int]]) -> bool:
        name, known = result
        return status_of(self._finished(name)) is None and _size_and_time(self._placed(name)) == known

    def _known(self, name: str) -> tuple[int, int]:
        """The identity of a finished file in its place. FileError if it is missing."""
        known = _size_and_time(self._finished(name))
        if known is None:
            raise FileError(f"{self._finished(name)}: was finished, and is not there")
        return known

    def _finished(self, name: str) -> str:
        return self._partial.file(f"{FILES}/{name}")


def _size_and_time(path: str) -> tuple[int, int] | None:
    """The bytes of a regular file and its modification time in nanoseconds. None for anything else."""
    status = status_of(path)
    return None if status is None or not stat.S_ISREG(status.st_mode) else (status.st_size, status.st_mtime_ns)


def _done_mark(folder: str) -> str | None:
    """The fingerprint in a written folder, or None."""
    try:
        with open_regular(os.path.join(folder, _DONE)) as file:
            # Anybody may have made it.
            return str(file_limits.parsed_json(file.read(file_limits.CONFIG).decode())["fingerprint"])
    except (FileNotFoundError, NotADirectoryError, FileError, ValueError, KeyError, TypeError):
        return None


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
    if is_mount_point(target):
        raise FileError(
            f"{path}: is a mount point, or a volume of its own, which nothing can take the place of; choose another "
            f"name, such as {os.path.join(path, os.path.basename(target))}"
            if os.path.isdir(target)
            else f"{path}: is mounted on its own, so that nothing can take its place; choose another name"
        )


def _size(file: FilePlan) -> int:
    """The bytes of a written file without its header. Text counts as nothing."""
    return file.bytes_in if file.tensors is None else sum(tensor.bytes_out or 0 for tensor in file.tensors)
