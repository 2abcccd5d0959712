# SPDX-License-Identifier: Apache-2.0
"""The unfinished work of a plan as a whole: who has it, whether it is finished, published, discarded."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.directory import Directory
from gpucast.checkpoints.running.held import Held
from gpucast.checkpoints.running.job import Job, Result
from gpucast.checkpoints.running.publication import Publication, result_of
from gpucast.core.places import resolved, status_of
from gpucast.files import FileError

SUFFIX = ".partial"
#: The folder of finished files.
FILES = "files"
_DONE = ".gpucast.json"


class Busy(FileError):
    """Another process works on the same file."""


class Unfinished:
    """The folder TARGET.partial of a plan, which need not exist."""

    def __init__(self, plan: ConversionPlan) -> None:
        self.plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.target = resolved(plan.target)
        self.folder = self.target + SUFFIX
        self.names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]
        self.paths = {"source": plan.source, "target": plan.target}
        self.held = Held(self.folder)
        self.is_begun = False
        #: What was finished when this process last saw all of it.
        self.results: tuple[Result, ...] | None = None
        #: Whether this process has written the target, or found it written.
        self.is_whole = False

    def release(self) -> None:
        """Let others publish or discard: this process no longer works here."""
        self.held.release()

    def own(self) -> Directory:
        """The folder that this process works in. FileError where it is gone."""
        folder = self.held.here()
        if folder is None:
            raise self.taken()
        return folder

    def read_job(self) -> Job | None:
        """What the folder that bears the name now says; None where there is none, or it says nothing yet."""
        folder = self.held.look()
        return None if folder is None else jobs.read(folder)

    def is_seen(self) -> bool:
        """Whether this process sees what another one has begun for this plan."""
        job = self.read_job()
        return job is not None and not job.is_discarded and job.fingerprint == self.plan.fingerprint

    def is_own(self) -> bool:
        """Whether this process has begun the work (or was about to), or gone on with it, and no other has put its own
        there since."""
        job = self.read_job() if self.is_begun else None
        return self.is_begun and (job is None or (not job.is_discarded and job.fingerprint == self.plan.fingerprint))

    def is_idle(self) -> bool:
        """Whether no process works here."""
        folder = self.held.look()
        return folder is None or jobs.is_idle(folder)

    def taken(self) -> FileError:
        return FileError(f"{self.folder}: was removed by another process, which has begun its own work there")

    def busy(self) -> Busy:
        return Busy(f"{self.plan.target}: another process is converting it at this moment; end it first")

    def is_done(self, file: FilePlan) -> bool:
        folder = self.held.here()
        return folder is not None and all(folder.status(path_of(name)) is not None for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return os.path.join(self.folder, path_of(name))

    # ---- publishing ----

    def is_published(self) -> bool:
        """Whether the target has been written: by this process, another one, or one that was killed right then."""
        if self.is_whole:
            return True
        if self.plan.single:
            folder = self.held.here()
            job = None if folder is None else jobs.read(folder)
            if folder is None or job is None or job.is_discarded or job.fingerprint != self.plan.fingerprint:
                return False
            if not self.publication(folder, job).is_complete():
                return False
            self.results = job.publishing
            return True
        status = status_of(self.target)
        if status is None:
            return False
        try:
            target = Directory(self.target)
        except NotADirectoryError:
            return False
        return jobs.read_done(target, _DONE) == self.plan.fingerprint and all(
            target.status(name) is not None for name in self.names
        )

    def publication(self, folder: Directory, job: Job) -> Publication:
        return Publication(folder, self.held.parent, job, self.paths)

    def finished_results(self) -> tuple[Result, ...]:
        """The results that are given places one by one, the target the last. FileError where one is missing."""
        folder, names = self.own(), self.names
        places = [*names[:-1], os.path.basename(self.target)]
        return tuple(result_of(folder, path_of(name), place) for name, place in zip(names, places, strict=True))

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is for this process to publish, to read the journals and to discard them; who comes second waits
        until all that is done, and then asks `check_published`."""
        is_ours = False
        try:
            with contextlib.suppress(FileNotFoundError):
                self.held.acquire(wait=True, shared=False)
                is_ours = self.is_seen()
            yield is_ours
        finally:
            self.release()

    def check_published(self) -> None:
        """FileError where another process, which was to publish what this one saw finished, has not done so."""
        if self.plan.single and self.results is not None:
            last = self.results[-1]
            status = self.held.parent.status(last.place)
            is_there = status is not None and (status.st_size, status.st_mtime_ns) == (last.size, last.time)
        else:
            is_there = self.is_published()
        if not is_there:
            raise FileError(f"{self.folder}: was removed by another process before {self.plan.target} was written")
        self.is_whole = True

    def publish(self) -> None:
        """Put the finished work in the place of the target, unless that has been done; for who has the job's lock
        alone. FileError where a result is missing, OSError: then nothing has been put there."""
        try:
            if not self.is_published():
                results = self.finished_results() if self.plan.single else (self._finished_folder(),)
                self.publication(self.own(), Job(self.plan.fingerprint)).publish(results)
            self.is_whole = True
        except BaseException:
            # It may have been interrupted after the last rename.
            with contextlib.suppress(OSError, FileError):
                self.is_whole = self.is_published()
            raise

    def _finished_folder(self) -> Result:
        """All finished files, indexes among them, as one result. FileError where one is missing."""
        folder = self.own()
        for name, text in self.plan.indexes:
            path = path_of(name)
            folder.make_all(os.path.dirname(path))
            jobs.write_text(folder, path, text)
        for name in self.names:
            result_of(folder, path_of(name), name)
        jobs.write_text(folder, path_of(_DONE), json.dumps(self.paths | {"fingerprint": self.plan.fingerprint}))
        folder.sync(FILES)
        return Result(FILES, os.path.basename(self.target), done=_DONE)

    # ---- discarding ----

    def discard(self) -> None:
        """Remove it all, and take back what has been published of a part; for who has the job's lock alone."""
        folder = self.held.here()
        if folder is None:
            return
        job = None
        with contextlib.suppress(FileError):
            job = jobs.read(folder)
        if job is not None and job.publishing is not None:
            self.publication(folder, job).undo()
        jobs.discard(folder, self.held.parent)

    def discard_alone(self) -> bool:
        """Remove what is of this plan, or of none, if no other process works here; whether that was so."""
        with contextlib.suppress(FileNotFoundError):
            if not self.held.acquire(wait=False, shared=False):
                return False
            try:
                job = self.read_job()
                if job is None or job.fingerprint == self.plan.fingerprint:
                    self.discard()
            finally:
                self.release()
        return True

    def give_up(self, seconds: float) -> None:
        """Remove it all, though others work here: they notice it, and stop. What of them has not stopped in time is
        left to the next start, which knows that it does not count."""
        self.release()
        folder = self.held.look()
        if folder is None:
            return
        jobs.mark_discarded(folder)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.held.acquire(wait=False, shared=False):
                    self.discard()
                    return
            except FileNotFoundError:
                return
            except OSError:
                # One that the locks do not tell of is still writing.
                pass
            finally:
                self.release()
            time.sleep(0.1)


def path_of(name: str) -> str:
    """Where a finished file lies in the folder, by its name with slashes."""
    return os.path.join(FILES, *name.split("/"))
