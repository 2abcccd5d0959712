# SPDX-License-Identifier: Apache-2.0
"""The folder of unfinished work, TARGET.partial: its owner, its lock, and the description of its conversion.

    lock       shared by processes that share the work, otherwise exclusive
    job.json   the conversion; without it nothing in the folder counts
    files/     finished files under their final names
    work/      unfinished files, and the journals

The folder is created first and removed last, together with its lock. Only its user and root can write to it
(`gpucast.core.trusted_files`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from typing import IO

from gpucast.core.places import replaced, status_of, sync_folder
from gpucast.core.trusted_files import why_not_ours_alone
from gpucast.files import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
#: What a file system says that knows no locks.
_NONE = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
SUFFIX = ".partial"
FILES, WORK = "files", "work"
_JOB, _LOCK = "job.json", "lock"


def lock(file: int | IO[bytes], wait: bool, shared: bool = False) -> bool:
    """Lock the file, for this process alone or `shared` with others that ask for the same; False if it is locked.

    True as well on file systems without locks. OSError if the state cannot be found out.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EACCES:
            # As NFS may say it.
            return False
        if error.errno not in _NONE:
            raise
    return True


def unlock(file: int) -> None:
    """Release the lock on an open file, if there is one."""
    if fcntl is not None:
        # Closing lifts it as well.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Job:
    fingerprint: str
    #: What people may want to know.
    paths: dict[str, str] = field(default_factory=dict)
    #: Files that are being given their places beside the target, with their bytes and the time of their last change in
    #: nanoseconds, which a rename keeps; None: the work goes on.
    publishing: dict[str, tuple[int, int]] | None = None


class Partial:
    """The folder beside the resolved `target`. It may not exist yet."""

    def __init__(self, target: str) -> None:
        self.target, self.path = target, target + SUFFIX
        self._lock: IO[bytes] | None = None
        #: Whether this process has the lock; whether nobody else has.
        self.is_locked = self.is_alone = False

    def file(self, name: str) -> str:
        """The path of a file in the folder; `name` may have slashes."""
        return os.path.join(self.path, *name.split("/"))

    def made(self, name: str) -> str:
        """The path of a file, after creating its parent folder."""
        os.makedirs(os.path.dirname(self.file(name)), exist_ok=True)
        return self.file(name)

    def exists(self) -> bool:
        """Whether the folder exists. FileError if another thing has its name, or if other users can write to it."""
        status = status_of(self.path)
        if status is None:
            return False
        if not stat.S_ISDIR(status.st_mode):
            what = "is a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "nothing that gpucast left"
            raise FileError(f"{self.path}: is in the way, and {what}; remove it")
        if is_mount_point(self.path):
            raise FileError(f"{self.path}: is mounted on its own, so that no result can be moved from it; unmount it")
        try:
            why = why_not_ours_alone(self.path)
        except FileNotFoundError:
            return False
        if why:
            raise FileError(f"{self.path}: {why}; nothing in it is trusted: choose another name, or have it removed")
        return True

    # ---- the lock ----

    def lock(self, alone: bool, wait: bool = False, make: bool = False) -> bool:
        """Take the lock, or change the kind of the lock that this process holds.

        `make` creates the folder, and `wait` waits for other processes. False if another process holds the lock.
        FileNotFoundError if there is no folder.
        """
        while True:
            self.release()
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            if not self.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            try:
                file = self._lock = open(self.file(_LOCK), "ab", buffering=0)
            except FileNotFoundError:
                # The folder has just been removed.
                continue
            if not lock(file, wait, shared=not alone):
                self.release()
                return False
            status = status_of(self.file(_LOCK))
            # Who discards removes the lock: then it is that of another folder.
            if status is not None and os.path.samestat(status, os.fstat(file.fileno())):
                self.is_locked, self.is_alone = True, alone
                if not HAS_LOCKS:
                    # An open file could not be removed.
                    file.close()
                return True

    def release(self) -> None:
        """Release the lock. Releasing it twice is no error."""
        if self._lock is not None:
            if not self._lock.closed:
                unlock(self._lock.fileno())
            self._lock.close()
        # Forgotten after it was given back: an interrupted release is made good by the next one.
        self._lock, self.is_locked, self.is_alone = None, False, False

    def is_idle(self) -> bool:
        """Whether no process holds the lock. The question writes nothing."""
        try:
            with open(self.file(_LOCK), "rb+") as file:
                return lock(file, wait=False)
        except FileNotFoundError:
            return True

    # ---- the job ----

    def job(self) -> Job | None:
        """The description of the conversion, or None before it is written. FileError if the folder holds files of
        others.
        """
        if not self.exists():
            return None
        try:
            with open(self.file(_JOB), encoding="utf-8") as file:
                record = json.load(file)
            publishing = record["publishing"]
            if publishing is not None:
                publishing = {str(name): (int(size), int(time)) for name, (size, time) in publishing.items()}
            return Job(str(record["fingerprint"]), record["paths"], publishing)
        except FileNotFoundError:
            if self._is_ours():
                return None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise FileError(f"{self.path}: is in the way, and nothing that gpucast left; remove it")

    def _is_ours(self) -> bool:
        names = self._names()
        known = all(name in (_JOB, _LOCK, FILES, WORK) or name.startswith(f".{_JOB}.") for name in names)
        # The lock is made first and removed last.
        return known and (not names or _LOCK in names)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def write(self, job: Job) -> None:
        """Write the description, whole or not at all, so that it survives a power cut."""
        with replaced(self.file(_JOB), 0o666) as file:
            file.write(json.dumps(vars(job)).encode())

    def forget(self) -> None:
        """Remove the description. From then on nothing in the folder counts, and processes at work there see that."""
        _unlink(self.file(_JOB))
        sync_folder(self.path)

    def has_work(self) -> bool:
        """Whether there are files other than journals. Journals stay when all results have their places."""
        return any(
            ".jsonl" not in name
            for folder in (WORK, FILES)
            for _, _, names in os.walk(self.file(folder))
            for name in names
        )

    # ---- for who has the lock alone ----

    def clear(self) -> None:
        """Remove all files but the lock. The description goes last, because it records published results."""
        for name in sorted(self._names(), key=_JOB.__eq__):
            if name in (WORK, FILES):
                shutil.rmtree(self.file(name))
            elif name != _LOCK:
                _unlink(self.file(name))

    def discard(self) -> None:
        """Remove the folder with all its files."""
        self.clear()
        _unlink(self.file(_LOCK))
        try:
            os.rmdir(self.path)
        except OSError as error:
            # Another process has just begun there, or removed it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def is_mount_point(path: str) -> bool:
    """Whether a file system is mounted at a resolved path. Such a path cannot be replaced by a rename."""
    # Files may tell another device than their folder where none is mounted: an overlay's layers have theirs.
    if os.path.isdir(path) and os.path.ismount(path):
        return True
    # A part of the same file system may be mounted there: a container's volume.
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as mounts:
        return any(_unescaped(line.split()[4]) == os.fsencode(path) for line in mounts)
    return False


def _unescaped(path: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
