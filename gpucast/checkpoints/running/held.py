# SPDX-License-Identifier: Apache-2.0
"""A folder of unfinished work as one process has it: with the job's lock, or looked at without."""

from __future__ import annotations

import os
from functools import cached_property

from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.directory import Directory, private
from gpucast.checkpoints.running.job import Lock


class Held:
    """The folder at `path`, which need not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.path.basename(path)
        self._lock: Lock | None = None

    @cached_property
    def parent(self) -> Directory:
        """The folder that it lies in. FileNotFoundError."""
        return Directory(os.path.dirname(self._path))

    @property
    def is_locked(self) -> bool:
        """Whether this process has the job's lock, shared or alone."""
        return self._lock is not None

    def look(self) -> Directory | None:
        """The folder that bears the name now; None where there is none. FileError where it is not this user's."""
        try:
            if self._lock is not None and self._lock.folder.bears_its_name(self.parent):
                # It has been judged.
                return self._lock.folder
            return private(self.parent, self._name, make=False)
        except (FileNotFoundError, NotADirectoryError):
            # There is no parent.
            return None

    def here(self) -> Directory | None:
        """The folder that this process has locked; while it has not, the one that bears the name."""
        return self._lock.folder if self._lock is not None else self.look()

    def acquire(self, wait: bool, shared: bool, make: bool = False) -> bool:
        """Lock the job, in the place of the lock that this process has; with `make` the folder is made. Whether others
        let it, if not to `wait`. FileNotFoundError where there is no folder."""
        self.release()
        self._lock = jobs.acquire(self.parent, self._name, wait, shared, make)
        return self._lock is not None

    def release(self) -> None:
        """Give the lock back; more than once is no error."""
        if self._lock is not None:
            # Forgotten after it was given back: an interrupted release is made good by the next one.
            self._lock.release()
            self._lock = None
