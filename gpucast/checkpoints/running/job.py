# SPDX-License-Identifier: Apache-2.0
"""What is written down of a conversion as a whole, in the folder of its unfinished work; and the lock on it.

job.json          which conversion this is; before its results are given their places, also which results these are
discarded.json    the same file, renamed: the folder is being removed, and nothing in it counts any more
lock              shared by those who work, held alone by who publishes, undoes or discards
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from dataclasses import dataclass
from typing import Any

from gpucast.checkpoints.running.directory import Directory, private
from gpucast.checkpoints.running.locks import HAS_LOCKS, lock, unlock
from gpucast.core.places import close_quietly
from gpucast.files import FileError, limits

_JOB, _DISCARDED, _LOCK = "job.json", "discarded.json", "lock"
#: What else there may be before the job is.
_EARLY = (_LOCK, "work", "files")


@dataclass(frozen=True)
class Result:
    """A finished file, or folder of files, that is given its place by one rename, and how to know it there."""

    #: Its name among the finished files, with slashes, and that beside the target.
    name: str
    place: str
    #: Bytes, and the time of the last change in nanoseconds: a rename keeps them. 0 for a folder.
    size: int = 0
    time: int = 0
    #: The file in a folder that tells which conversion it is of.
    done: str = ""


@dataclass(frozen=True)
class Job:
    fingerprint: str
    #: Those that are being given their places, or have been, in that order; None: the work goes on.
    publishing: tuple[Result, ...] | None = None
    is_discarded: bool = False


def read(folder: Directory) -> Job | None:
    """The job of a folder of unfinished work; None where none has been written down. FileError where it is not ours."""
    while True:
        job = _read(folder, _JOB) or _read(folder, _DISCARDED)
        if job is not None:
            return job
        names = folder.names()
        if all(name in _EARLY or name.startswith(f"{_JOB}.") for name in names):
            return None
        if not {_JOB, _DISCARDED} & set(names):
            raise _in_the_way(folder)
        # It has just been written, or renamed.


def _read(folder: Directory, name: str) -> Job | None:
    try:
        with open(name, encoding="utf-8", opener=folder.opener) as file:
            return _parsed(json.load(file), name == _DISCARDED)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _in_the_way(folder) from None


def read_done(folder: Directory, name: str) -> str | None:
    """The fingerprint that a written folder bears; None where it bears none."""
    try:
        with open(name, encoding="utf-8", opener=folder.opener) as file:
            # Anybody may have made it.
            return str(limits.parsed_json(file.read(limits.CONFIG))["fingerprint"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _parsed(record: dict[str, Any], is_discarded: bool) -> Job:
    results = record.get("publishing")
    publishing = None if results is None else tuple(Result(**result) for result in results)
    return Job(str(record["fingerprint"]), publishing, is_discarded)


def _in_the_way(folder: Directory) -> FileError:
    return FileError(f"{folder.path}: is in the way, and nothing that gpucast left; remove it")


def write(folder: Directory, job: Job, paths: dict[str, str]) -> None:
    """Write the job down, whole or not at all, to last through a power cut. `paths` are for people who look at it."""
    record: dict[str, Any] = paths | {"fingerprint": job.fingerprint}
    if job.publishing is not None:
        record["publishing"] = [vars(result) for result in job.publishing]
    # Several processes may begin at once where there are no locks: all write the same.
    temporary = f"{_JOB}.{os.getpid()}"
    write_text(folder, temporary, json.dumps(record))
    folder.replace(temporary, folder, _JOB)
    folder.sync()


def write_text(folder: Directory, name: str, text: str) -> None:
    with open(folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def discard(folder: Directory, parent: Directory) -> None:
    """Remove a folder of unfinished work; the lock is held. After a kill in between it is known as discarded."""
    mark_discarded(folder)
    for name in folder.names():
        if name not in (_DISCARDED, _LOCK):
            folder.remove(name)
    folder.unlink(_DISCARDED)
    # Who waits for the lock sees that it is gone, and looks again.
    folder.unlink(_LOCK)
    name = os.path.basename(folder.path)
    if folder.bears_its_name(parent):
        try:
            parent.remove_folder(name)
        except OSError as error:
            # Another process has just begun there.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def mark_discarded(folder: Directory) -> None:
    """Say that nothing in the folder counts any more; those who work there see it."""
    if folder.status(_JOB) is not None:
        # A rename, which a full disk allows.
        folder.replace(_JOB, folder, _DISCARDED)
        folder.sync()


class Lock:
    """The lock of a folder of unfinished work, and that folder."""

    def __init__(self, folder: Directory, handle: int | None) -> None:
        self.folder = folder
        self._handle = handle
        self._close = None if handle is None else weakref.finalize(self, close_quietly, handle)

    def release(self) -> None:
        if self._close is not None and self._close.alive:
            assert self._handle is not None
            # First, so that an interruption leaves at most a descriptor without a lock.
            unlock(self._handle)
            self._close()


def acquire(parent: Directory, name: str, wait: bool, shared: bool, make: bool = False) -> Lock | None:
    """The lock of the folder of that name; with `make` both are made. None where others have it, if not to `wait`.

    FileNotFoundError where there is no such folder, FileError where it is not this user's.
    """
    while True:
        folder = private(parent, name, make)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(parent.path, name))
        if not HAS_LOCKS:
            # And an open file could not be removed.
            return Lock(folder, None)
        try:
            held = Lock(folder, handle := folder.open(_LOCK, os.O_RDWR | os.O_CREAT))
        except FileNotFoundError:
            # The folder has just been removed.
            continue
        try:
            is_locked = lock(handle, wait, shared)
            status = folder.status(_LOCK)
            # Who discards removes the lock: then it is that of another folder.
            if status is not None and os.path.samestat(status, os.fstat(handle)) and folder.bears_its_name(parent):
                return held if is_locked else None
        except BaseException:
            # The error's traceback keeps `held`, and with it the lock, which this process may want again.
            held.release()
            raise
        held.release()


def is_idle(folder: Directory) -> bool:
    """Whether nobody has the lock; nothing is written to find out."""
    try:
        handle = folder.open(_LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return lock(handle, wait=False)
    finally:
        os.close(handle)
