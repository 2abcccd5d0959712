# SPDX-License-Identifier: Apache-2.0
"""Giving finished results their places: all, or none of them.

A result takes its place by one rename, which is atomic; several cannot be. So which they are is written down first.
From then on, if it was interrupted, the next start renames what is left (`publish` once more), or `undo` takes back
what was renamed. The last one counts: when it has its place, the results are published. An error before that undoes
the renames at once. Any number of results is one publication; nothing here knows what they were made from.

All functions are for who has the job's lock alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Sequence

from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.directory import Directory
from gpucast.checkpoints.running.job import Job, Result
from gpucast.files import FileError


class Publication:
    """The results of a job in the folder `work`, which are given places in `parent`."""

    def __init__(self, work: Directory, parent: Directory, job: Job, paths: dict[str, str]) -> None:
        self._work, self._parent, self._job, self._paths = work, parent, job, paths

    def publish(self, results: Sequence[Result]) -> None:
        """Give them their places; all but the last are new there. FileError where one is missing, or its place taken;
        OSError. Then, and if it is interrupted before the last has its place, none has."""
        for result in results:
            if self._work.status(result.name) is None:
                raise FileError(f"{os.path.join(self._work.path, result.name)}: was finished, and is not there")
        for result in results[:-1]:
            if self._parent.status(result.place) is not None:
                raise FileError(f"{os.path.join(self._parent.path, result.place)}: exists, and would be replaced")
        begun = self._job
        job = self._job = dataclasses.replace(begun, publishing=tuple(results))
        try:
            jobs.write(self._work, job, self._paths)
            self.complete()
        except BaseException:
            # If this fails too, what is written down tells the next start.
            with contextlib.suppress(OSError, FileError):
                if not self.is_complete():
                    self.undo()
                    jobs.write(self._work, begun, self._paths)
            raise

    def complete(self) -> None:
        """Give the results that are written down their places, where they have not got them."""
        for result in self._job.publishing or ():
            if self._work.status(result.name) is not None:
                self._work.replace(result.name, self._parent, result.place)
            elif not self._has_place(result):
                raise FileError(
                    f"{os.path.join(self._parent.path, result.place)}: was being written, and is neither there nor in "
                    f"{self._work.path} as it was; give --restart to begin anew"
                )
        self._parent.sync()

    def is_complete(self) -> bool:
        """Whether all results have their places."""
        results = self._job.publishing
        return results is not None and all(
            self._work.status(result.name) is None and self._has_place(result) for result in results
        )

    def undo(self) -> None:
        """Take back the results that have their places, unless all have."""
        if self.is_complete():
            return
        for result in reversed(self._job.publishing or ()):
            if self._work.status(result.name) is None and self._has_place(result):
                self._parent.replace(result.place, self._work, result.name)

    def _has_place(self, result: Result) -> bool:
        status = self._parent.status(result.place)
        if status is None:
            return False
        if result.done:
            return stat.S_ISDIR(status.st_mode) and self.written_by(result) == self._job.fingerprint
        return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (result.size, result.time)

    def written_by(self, result: Result) -> str | None:
        """The fingerprint of the job that a folder in a result's place is of."""
        return jobs.read_done(Directory(os.path.join(self._parent.path, result.place), self._parent), result.done)


def result_of(work: Directory, name: str, place: str) -> Result:
    """A finished file as a result. FileError where it is missing."""
    status = work.status(name)
    if status is None or not stat.S_ISREG(status.st_mode):
        raise FileError(f"{os.path.join(work.path, name)}: was finished, and is not there")
    return Result(name, place, status.st_size, status.st_mtime_ns)
