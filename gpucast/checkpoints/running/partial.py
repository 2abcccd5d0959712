# SPDX-License-Identifier: Apache-2.0
"""The folder of unfinished work, TARGET.partial: whose it is, its lock, which job it is of, and its two ends.

    lock       shared by those who work, held alone by who begins, publishes or discards
    job.json   which conversion this is, and which results are being published; without it nothing here counts
    files/     finished files under their final names
    work/      unfinished files, and the journals

Its two ends are `publish` and `discard`. A result takes its place by one rename; several cannot take theirs at once, so
which they are is written down first, and the last one counts. Whatever stops a run, the next one goes on from what is
written down. Nobody but its user and root can write the folder (`gpucast.core.trusted_files`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import stat
from dataclasses import dataclass
from typing import IO, Any

from gpucast.checkpoints.running.locks import HAS_LOCKS, lock, unlock
from gpucast.checkpoints.running.place import is_mount_point
from gpucast.core.places import status_of
from gpucast.core.trusted_files import why_not_ours_alone
from gpucast.core.whole_files import replaced, sync_folder
from gpucast.files import FileError, limits
from gpucast.files.inside import open_regular

SUFFIX = ".partial"
FILES, WORK = "files", "work"
#: In a written folder: which conversion it is of, by which a process that comes late knows that nothing is left to do.
DONE = ".gpucast.json"
_JOB, _LOCK = "job.json", "lock"


@dataclass(frozen=True)
class Result:
    """A finished file, or the folder of them all, that is given its place by one rename, and how to know it there."""

    #: Its name in the folder, with slashes, and that beside the target.
    name: str
    place: str
    #: Bytes, and the time of the last change in nanoseconds: a rename keeps them. 0 for a folder, which has `DONE`.
    size: int = 0
    time: int = 0


@dataclass(frozen=True)
class Job:
    fingerprint: str
    #: Those that are being given their places, or have been, in that order; None: the work goes on.
    publishing: tuple[Result, ...] | None = None


class Partial:
    """The folder beside the resolved `target`; it need not exist. `paths` tell people what it is of."""

    def __init__(self, target: str, paths: dict[str, str]) -> None:
        self.path, self.paths, self._parent = target + SUFFIX, paths, os.path.dirname(target)
        self._lock: IO[bytes] | None = None
        #: Whether this process has the lock, shared or alone.
        self.is_locked = False

    def file(self, name: str) -> str:
        """The path of what has this name, with slashes, in the folder."""
        return os.path.join(self.path, *name.split("/"))

    def exists(self) -> bool:
        """FileError where what bears the name is no folder of this user's alone."""
        status = status_of(self.path)
        if status is None:
            return False
        if not stat.S_ISDIR(status.st_mode):
            what = "is a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "nothing that gpucast left"
            raise FileError(f"{self.path}: is in the way, and {what}; remove it")
        if is_mount_point(self.path, status, os.stat(self._parent)):
            raise FileError(f"{self.path}: is mounted on its own, so that no result can be moved from it; unmount it")
        try:
            why = why_not_ours_alone(self.path)
        except FileNotFoundError:
            return False
        if why:
            raise FileError(f"{self.path}: {why}; nothing in it is trusted: choose another name, or have it removed")
        return True

    # ---- the lock ----

    def lock(self, alone: bool, wait: bool, make: bool = False) -> bool:
        """Take the lock, in the place of the one that this process has; with `make` the folder is made. Whether others
        let it, if not to `wait`. FileNotFoundError where there is no folder."""
        while True:
            self.release()
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            if not self.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            try:
                self._lock = open(self.file(_LOCK), "ab", buffering=0)
            except FileNotFoundError:
                # The folder has just been removed.
                continue
            if not HAS_LOCKS:
                # An open file could not be removed.
                self._lock.close()
                self.is_locked = True
                return True
            self.is_locked = lock(self._lock, wait, shared=not alone)
            status = status_of(self.file(_LOCK))
            # Who discards removes the lock: then it is that of another folder.
            if status is not None and os.path.samestat(status, os.fstat(self._lock.fileno())):
                return self.is_locked

    def release(self) -> None:
        """Give the lock back; more than once is no error."""
        if self._lock is not None:
            if not self._lock.closed:
                unlock(self._lock.fileno())
            self._lock.close()
            # Forgotten after it was given back: an interrupted release is made good by the next one.
            self._lock, self.is_locked = None, False

    def is_idle(self) -> bool:
        """Whether nobody has the lock; nothing is written to find out."""
        try:
            with open(self.file(_LOCK), "rb+") as file:
                return lock(file, wait=False)
        except FileNotFoundError:
            return True

    # ---- the job ----

    def job(self) -> Job | None:
        """None where there is none, or nothing that counts. FileError where the folder is not one of ours."""
        if not self.exists():
            return None
        try:
            with open(self.file(_JOB), encoding="utf-8") as file:
                record = json.load(file)
            results = record.get("publishing")
            publishing = None if results is None else tuple(Result(**result) for result in results)
            return Job(str(record["fingerprint"]), publishing)
        except FileNotFoundError:
            if self._is_ours(self.leftovers()):
                return None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise FileError(f"{self.path}: is in the way, and nothing that gpucast left; remove it")

    def leftovers(self) -> list[str]:
        """What is there beside the lock, without which there is nothing of ours."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.path)
            return [name for name in names if name != _LOCK] if _LOCK in names else names
        return []

    def _is_ours(self, names: list[str]) -> bool:
        # The lock is made first and removed last.
        is_locked = status_of(self.file(_LOCK)) is not None
        return not names or (
            is_locked and all(name in (_JOB, FILES, WORK) or name.startswith(f".{_JOB}.") for name in names)
        )

    def write(self, job: Job) -> None:
        """Write the job down, whole or not at all, to last through a power cut."""
        record: dict[str, Any] = self.paths | {"fingerprint": job.fingerprint}
        if job.publishing is not None:
            record["publishing"] = [vars(result) for result in job.publishing]
        with replaced(self.file(_JOB), 0o666) as file:
            file.write(json.dumps(record).encode())

    # ---- the ends, for who has the lock alone ----

    def result(self, name: str, place: str) -> Result:
        """A finished file as a result. FileError where it is missing."""
        status = status_of(self.file(name))
        if status is None:
            raise FileError(f"{self.file(name)}: was finished, and is not there")
        return Result(name, place, *((status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else ()))

    def publish(self, job: Job, results: tuple[Result, ...]) -> None:
        """Give the results of a job their places; all but the last are new there. FileError where one is taken."""
        for result in results[:-1]:
            if status_of(self._place(result)) is not None:
                raise FileError(f"{self._place(result)}: exists, and would be replaced")
        job = dataclasses.replace(job, publishing=results)
        self.write(job)
        self.complete(job)

    def complete(self, job: Job) -> None:
        """Give the results that are written down their places, where they have not got them."""
        for result in job.publishing or ():
            if status_of(self.file(result.name)) is not None:
                _move(self.file(result.name), self._place(result))
            elif not self._has_place(result, job):
                raise FileError(
                    f"{self._place(result)}: was being written, and is neither there nor in {self.path} as it was; "
                    "give --restart to begin anew"
                )
        sync_folder(self._parent)

    def is_complete(self, job: Job) -> bool:
        """Whether all results of a job have their places."""
        return job.publishing is not None and all(
            status_of(self.file(result.name)) is None and self._has_place(result, job) for result in job.publishing
        )

    def discard(self) -> None:
        """Remove it all. What has been published of a part is moved back first, and goes with the rest."""
        job = self.job()
        if job is not None and not self.is_complete(job):
            for result in job.publishing or ():
                if status_of(self.file(result.name)) is None and self._has_place(result, job):
                    os.replace(self._place(result), self.file(result.name))
            self.forget()
        for name in (WORK, FILES):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.file(name))
        # While there is a job whose results have their places, the next run can tell that they have.
        for name in (*self.leftovers(), _LOCK):
            _unlink(self.file(name))
        try:
            os.rmdir(self.path)
        except OSError as error:
            # Another process has just begun there, or removed it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def forget(self) -> None:
        """From now on nothing in the folder counts; those who work there see it."""
        _unlink(self.file(_JOB))
        sync_folder(self.path)

    def _place(self, result: Result) -> str:
        return os.path.join(self._parent, result.place)

    def _has_place(self, result: Result, job: Job) -> bool:
        status = status_of(self._place(result))
        if status is None:
            return False
        if stat.S_ISDIR(status.st_mode):
            return result.name == FILES and done_mark(self._place(result)) == job.fingerprint
        return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (result.size, result.time)


def done_mark(folder: str) -> str | None:
    """The fingerprint that a written folder bears; None where it bears none."""
    try:
        with open_regular(os.path.join(folder, DONE)) as file:
            # Anybody may have made it.
            return str(limits.parsed_json(file.read(limits.CONFIG).decode())["fingerprint"])
    except (FileNotFoundError, NotADirectoryError, FileError, ValueError, KeyError, TypeError):
        return None


def _move(path: str, place: str) -> None:
    if os.name == "nt" and os.path.isdir(path) and os.path.isdir(place):
        # Windows replaces no folder, not even an empty one.
        os.rmdir(place)
    os.replace(path, place)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
