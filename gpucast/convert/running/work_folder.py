# SPDX-License-Identifier: Apache-2.0
"""A folder of unfinished work: whether its files can be trusted, who holds its lock, and how it is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from typing import IO

from gpucast.core.places import status_of
from gpucast.core.trusted_files import why_not_ours
from gpucast.files import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: The name of its lock, which is made first and removed last.
LOCK = "lock"
#: What a file system says that knows no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def lock(file: IO[bytes], wait: bool, shared: bool = False) -> bool:
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
        if error.errno not in _NO_LOCKS:
            raise
    return True


class WorkFolder:
    """The folder of one path, if there is one, and the lock of it that this process holds, if it does."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        #: Whether this process holds the lock, and no other one does.
        self.is_alone = False

    def file(self, name: str) -> str:
        """The path of a file in the folder; `name` may have slashes."""
        return os.path.join(self.path, *name.split("/"))

    def made(self, name: str) -> str:
        """The path of a file, after creating its parent folder."""
        os.makedirs(os.path.dirname(self.file(name)), exist_ok=True)
        return self.file(name)

    def exists(self) -> bool:
        """Whether the folder exists. FileError if another thing has its name, or if others can write to it."""
        status = status_of(self.path)
        if status is None:
            return False
        if not stat.S_ISDIR(status.st_mode):
            what = "is a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "nothing that gpucast left"
            raise FileError(f"{self.path}: is in the way, and {what}; remove it")
        if (why := why_not_ours(status)) and not self._is_mapped(status):
            raise FileError(f"{self.path}: {why}; nothing in it is trusted: choose another name, or have it removed")
        return True

    def _is_mapped(self, status: os.stat_result) -> bool:
        """Whether the file system shows what this process makes there with the same owner, and as open to others.

        It may show others' folders like that, too: one with links in it is not accepted.
        """
        around = os.path.dirname(self.path)
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=around) as file:
            # Modes of folders and files may differ. The owner is the file's: nobody can exchange what is open.
            made = tempfile.mkdtemp(dir=around)
            folder = os.lstat(made)
            os.rmdir(made)
            is_as_open = not status.st_mode & ~folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if is_as_open and status.st_uid == folder.st_uid == os.fstat(file.fileno()).st_uid:
                walked = os.walk(self.path, onerror=_raise)
                paths = (os.path.join(at, name) for at, *both in walked for names in both for name in names)
                return not any(map(os.path.islink, paths))
        return False

    def take(self, alone: bool, wait: bool = False, make: bool = False) -> bool:
        """Take the lock, or change the kind of the lock that this process holds.

        `make` makes the folder, and `wait` waits for other processes. False if another process holds the lock, or if
        there is no folder.
        """
        while True:
            self.release()
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.path, 0o700)
            if not self.exists():
                return False
            try:
                file = self._lock = open(self.file(LOCK), "ab", buffering=0)
            except FileNotFoundError:
                # The folder has just been removed.
                continue
            if not lock(file, wait, shared=not alone):
                self.release()
                return False
            status = status_of(self.file(LOCK))
            # The process that discards the folder removes the lock: then it is that of another folder.
            if status is not None and os.path.samestat(status, os.fstat(file.fileno())):
                self.is_alone = alone
                return True

    def release(self) -> None:
        """Release the lock. Releasing it twice is no error."""
        if self._lock is not None:
            self._lock.close()
        # Forgotten after it was given back: an interrupted release is made good by the next one.
        self._lock, self.is_alone = None, False

    def listed(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def remove(self) -> None:
        """Remove the lock, and the folder, which has no other files. The caller holds the lock alone."""
        if fcntl is None:
            # Windows removes no open file.
            self.release()
        remove([self.file(LOCK)])
        # It locks nothing any more: who begins anew here makes another one.
        self.release()
        try:
            os.rmdir(self.path)
        except OSError as error:
            # Another process has just begun there, or removed it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def remove(paths: list[str]) -> None:
    """Remove files that may not be there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _raise(error: OSError) -> None:
    """For `os.walk`, which ignores errors. What another process has just removed is none."""
    if not isinstance(error, FileNotFoundError):
        raise error
