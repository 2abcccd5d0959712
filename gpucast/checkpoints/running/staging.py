# SPDX-License-Identifier: Apache-2.0
"""The unfinished work of a plan: begun or continued in TARGET.partial, done file by file, renamed to the target at the
end.

    files/            finished files under their final names
    work/7.part/      written parts of file 7 of the plan, under its final names
    work/7.jsonl      the journal of file 7

A process holds the folder's lock while it works (shares of one conversion hold it together), and a lock on the file
that it writes. The system releases locks when a process dies. So after a kill at any moment the next run continues from
the files on disk (docs/checkpoints.md has the table).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.partial import FILES, WORK, Job, Partial, lock
from gpucast.checkpoints.running.target import Target
from gpucast.checkpoints.streaming.checksums import Journal
from gpucast.core.places import closing, resolved, status_of, sync_folder
from gpucast.files import FileError
from gpucast.files.atomic import mode_of, new_mode, within

#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20
#: How often, and how long apart, a start looks again while another one is at the same.
_LOOKS, _APART = 100, 0.05


class Busy(FileError):
    """Another process writes the same file."""


class Staging:
    """The unfinished work of a plan, if there is any."""

    def __init__(self, plan: ConversionPlan) -> None:
        self.plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.partial = Partial(resolved(plan.target))
        self.target = Target(plan, self.partial)
        self.folder = self.partial.path
        self._is_begun = False
        #: Whether this process has written the target, or found it written.
        self.is_whole = False

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """Raise the errors of `begin`, and do nothing else."""
        if within(self.folder, self.plan.source):
            raise FileError(f"{self.plan.source}: lies in {self.folder}, which is for unfinished work; move it first")
        if self._going_on(restart) is not None:
            return
        if restart and self.partial.job() is not None:
            if not self.partial.is_idle():
                raise self._busy()
        elif self.is_published():
            if restart:
                raise FileError(
                    f"{self.plan.target}: is finished, and --restart discards unfinished work alone; remove it to "
                    "convert it again"
                )
            return
        self.target.check()

    def _going_on(self, restart: bool) -> Job | None:
        """The job to continue, or None to begin anew. FileError if the job in the folder must be neither continued nor
        discarded.
        """
        job = self._job()
        if job is None and not restart and self.partial.job() is not None and self.partial.has_work():
            raise FileError(
                f"{self.folder}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        return None if restart else job

    def begin(self, restart: bool = False, is_share: bool = False) -> None:
        """Begin the work or continue it; `restart` begins anew. FileError if neither is possible.

        Afterwards this process holds the lock, together with other shares if it is one. Once the target is written and
        nothing unfinished is left, no process holds it.
        """
        for _ in range(_LOOKS):
            self.check(restart)
            if self.is_published() and not self.partial.exists():
                return
            # Said before the folder is made: whatever interrupts the next steps, `is_own` knows of them.
            self._is_begun = True
            job = self._going_on(restart)
            with contextlib.suppress(FileNotFoundError):
                if is_share and job is not None and job.publishing is None:
                    if self.partial.lock(alone=False) and self.is_seen():
                        return
                elif self.partial.lock(alone=True, make=True):
                    self._mend(restart)
                    restart = False
                    if not is_share or self.is_published():
                        return
                    continue
            # Another process does the same at this moment, or works on.
            time.sleep(_APART)
        raise self._busy()

    def _mend(self, restart: bool) -> None:
        """Write the job down, or continue to publish results. The caller holds the lock alone."""
        job = self._going_on(restart)
        if job is None:
            if not restart and self.is_published():
                self.partial.discard()
                return
            self.partial.forget()
            self.partial.clear()
            self.target.check()
            job = self.target.job()
            self.partial.write(job)
        # A kill may have left the job alone.
        for name in (WORK, FILES):
            os.makedirs(self.partial.file(name), exist_ok=True)
        if job.publishing is not None:
            self.target.complete(job.publishing)

    # ---- whose work this is ----

    def _job(self) -> Job | None:
        """The job in the folder, if it belongs to this plan."""
        job = self.partial.job()
        return job if job is not None and job.fingerprint == self.plan.fingerprint else None

    def is_seen(self) -> bool:
        """Whether there is work on this plan, by this process or another one."""
        return self._job() is not None

    def is_own(self) -> bool:
        """Whether this process has begun or continued the work (or was about to), and no other process has replaced it
        since.
        """
        return self._is_begun and (self.partial.job() is None or self.is_seen())

    def _taken(self) -> FileError:
        return FileError(f"{self.folder}: was removed by another process, which has begun its own work there")

    def _busy(self) -> Busy:
        return Busy(f"{self.plan.target}: another process is converting it at this moment; end it first")

    # ---- one file ----

    def is_done(self, file: FilePlan) -> bool:
        return all(status_of(self.finished(name)) is not None for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return self.partial.file(f"{FILES}/{name}")

    def journal(self, file: FilePlan) -> Journal:
        return Journal(self._path(file, "jsonl"))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """Open the unfinished file for reading and writing, as it was left. No other process can open it meanwhile."""
        with self._working():
            if not self.is_seen():
                raise self._taken()
            path = self.parts(file)[-1]
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            with closing(open(handle, "r+b", buffering=1 << 20)) as part:
                if not lock(part, wait=False):
                    raise Busy(f"{self.plan.target}: another process is converting {file.path} at this moment")
                yield part

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """The folder's lock: the one held since `begin`, or a shared one of its own."""
        if self.partial.is_locked:
            yield
            return
        try:
            self.partial.lock(alone=False, wait=True)
        except FileNotFoundError:
            raise self._taken() from None
        try:
            yield
        finally:
            self.partial.release()

    def parts(self, file: FilePlan) -> list[str]:
        """The folder of the files in `file.names` until they are finished."""
        return [os.path.join(self._path(file, "part"), name.rpartition("/")[2]) for name in file.names]

    def remove_parts(self, file: FilePlan) -> None:
        """Remove the written parts, so that the file is written anew."""
        _remove(self.parts(file))

    def remove_finished(self, file: FilePlan) -> None:
        _remove([self.finished(name) for name in file.names])

    def finish(self, file: FilePlan) -> None:
        """Give the written parts their final names. They must be on the disk already."""
        # The permissions of the file that is replaced, or those that a plain ``open`` would give.
        mode = mode_of(self.target.path) if self.plan.single else new_mode()
        for path, name in zip(self.parts(file), file.names, strict=True):
            os.chmod(path, mode)
            os.replace(path, self.partial.made(f"{FILES}/{name}"))
            sync_folder(os.path.dirname(self.finished(name)))

    def _path(self, file: FilePlan, ending: str) -> str:
        return self.partial.file(f"{WORK}/{self.plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet; none once the target is written."""
        missing = [file for file in self.plan.files if not self.is_done(file)]
        # Asked for last: another share may publish what is being counted.
        return [] if self.is_published() else missing

    def is_worth_keeping(self) -> bool:
        """Whether another run can continue the finished work, or a result is published already."""
        job = self._job()
        if job is not None and self.target.is_begun(job):
            return True
        done = 0
        for file in self.plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING

    def is_published(self) -> bool:
        """Whether the target is written: by this process, by another one, or by one that was killed immediately
        afterwards.
        """
        return self.is_whole or self.target.is_written(self._job())

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is this process that publishes, reads the journals and discards them.

        One of several shares does; the others wait for it. FileError if the work is gone and the target is not written.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                if not self.partial.is_alone:
                    self.partial.lock(alone=True, wait=True)
            is_ours = self.partial.is_alone and self.is_seen()
            if not is_ours and not self.is_published():
                raise FileError(f"{self.folder}: was removed by another process before {self.plan.target} was written")
            yield is_ours
        finally:
            self.partial.release()

    def publish(self) -> None:
        """Move the finished work to the target, unless that is done. The caller holds the lock alone. FileError if a
        result is missing.
        """
        try:
            if not self.is_published():
                self.target.publish()
            self.is_whole = True
        except BaseException:
            # It may have been interrupted after the last rename.
            with contextlib.suppress(OSError, FileError):
                self.is_whole = self.is_published()
            raise

    def discard_alone(self) -> bool:
        """Remove the work of this plan, and work of no plan, unless another process is at work here. Returns whether it
        did.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                if not (self.partial.is_alone or self.partial.lock(alone=True)):
                    return False
                if self.is_own() or self.partial.job() is None:
                    if not self.is_whole:
                        self.partial.forget()
                    self.partial.discard()
            return True
        finally:
            self.partial.release()


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
