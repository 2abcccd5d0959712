# SPDX-License-Identifier: Apache-2.0
"""The work of a plan: begun or gone on with in `gpucast.checkpoints.running.partial`, done file by file, published.

    files/            finished files under their final names
    work/7.part/      what is written of file 7 of the plan, under its final names
    work/7.jsonl      the journal of file 7

A process has the folder's lock, shared, while it works, and a lock on the file that it writes; the system lifts locks
when a process dies. So any number of processes may share the work, and after a kill at any moment the next run goes on
with what is there (docs/checkpoints.md has the table).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.locks import lock
from gpucast.checkpoints.running.partial import DONE, FILES, WORK, Job, Partial, Result, done_mark
from gpucast.checkpoints.running.place import check_place, check_space
from gpucast.checkpoints.streaming.journal import Journal
from gpucast.core.places import resolved, status_of
from gpucast.core.whole_files import closing, replaced, sync_folder
from gpucast.files import FileError
from gpucast.files.atomic import check_target, mode_of, new_mode
from gpucast.files.inside import within

#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20
#: How often, and how long apart, a start looks again while another one is at the same.
_LOOKS, _APART = 100, 0.05


class Busy(FileError):
    """Another process works on the same file."""


class Staging:
    """The unfinished work of a plan, of which there need not be any."""

    def __init__(self, plan: ConversionPlan) -> None:
        self.plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.target = resolved(plan.target)
        self.partial = Partial(self.target, {"source": plan.source, "target": plan.target})
        self.folder = self.partial.path
        self.names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]
        self._is_begun = False
        #: Whether this process has written the target, or found it written.
        self.is_whole = False
        #: What was finished when this process last saw all of it.
        self._seen: tuple[Result, ...] = ()

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """The errors of `begin`, and nothing else."""
        job = self._found(restart)
        if job is not None and restart and not self.partial.is_idle():
            raise self.busy()
        if (job is None or restart or not self._is_ours(job)) and not self.is_published():
            self._check_target()

    def begin(self, restart: bool = False) -> None:
        """Begin, or go on with what is there; with `restart`, without it. FileError where neither can be.

        What another run was publishing when it ended is completed; what it was discarding is discarded. From then on
        this process has the lock, unless the target is written and nothing unfinished is left.
        """
        for _ in range(_LOOKS):
            self.partial.release()
            self._found(restart)
            is_there = self.partial.exists()
            if not is_there and self.is_published():
                if restart:
                    raise FileError(
                        f"{self.plan.target}: is finished, and --restart discards unfinished work alone; remove "
                        "it to convert it again"
                    )
                return
            if not is_there:
                self._check_target()
            # Said before the folder is made: whatever interrupts the next steps, `is_own` knows of them.
            self._is_begun = True
            with contextlib.suppress(FileNotFoundError):
                if self.partial.lock(alone=True, wait=False, make=not is_there):
                    self._mend(restart)
                    restart = False
                elif restart:
                    raise self.busy()
                # Who publishes or discards is waited for.
                self.partial.lock(alone=False, wait=True)
                if self.is_seen():
                    return
            # Another process does the same at this moment, or works on.
            time.sleep(_APART)
        raise self.busy()

    def _found(self, restart: bool) -> Job | None:
        """The job that is there. FileError where it is neither to be gone on with nor to be discarded."""
        if within(self.folder, self.plan.source):
            raise FileError(f"{self.plan.source}: lies in {self.folder}, which is for unfinished work; move it first")
        job = self.partial.job()
        if job is not None and not restart and not self._is_ours(job) and self._has_work():
            raise FileError(
                f"{self.folder}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        return job

    def _mend(self, restart: bool) -> None:
        """With the lock held alone: write the job down, or complete what was being published, or discard what does not
        count."""
        job = self._found(restart)
        if job is None and not self.partial.leftovers() and not self.is_published():
            self._check_target()
            self.partial.write(Job(self.plan.fingerprint))
        elif job is None or restart or not self._is_ours(job):
            self.partial.discard()
            return
        elif job.publishing is not None:
            self.partial.complete(job)
            return
        # A kill may have left the job alone.
        for name in (WORK, FILES):
            os.makedirs(self.partial.file(name), exist_ok=True)

    def _is_ours(self, job: Job) -> bool:
        return job.fingerprint == self.plan.fingerprint

    def _has_work(self) -> bool:
        # A journal alone is none: it is what remains when all has been published.
        return any(
            not name.endswith(".jsonl")
            for folder in (WORK, FILES)
            for _, _, names in os.walk(self.partial.file(folder))
            for name in names
        )

    def _check_target(self) -> None:
        target, plan = self.target, self.plan
        check_place(target, plan.target)
        if plan.single:
            check_target(plan.target)
            if not plan.overwrite and status_of(target) is not None:
                raise FileError(f"{plan.target}: exists already; give --overwrite to replace it, or another name")
            parent = os.path.dirname(target)
            for name in self.names[:-1]:
                if status_of(os.path.join(parent, name)) is not None:
                    raise FileError(
                        f"{os.path.join(parent, name)}: exists, and the external data of {plan.target} would replace "
                        "it; remove it or choose another name"
                    )
        elif status_of(target) is not None and not (os.path.isdir(target) and not os.listdir(target)):
            raise FileError(f"{plan.target}: exists already; expected a new or empty folder")
        check_space(target, plan.files, plan.target)

    # ---- whose work this is ----

    def is_seen(self) -> bool:
        """Whether this process sees what it, or another one, has begun for this plan."""
        job = self.partial.job()
        return job is not None and self._is_ours(job)

    def is_own(self) -> bool:
        """Whether this process has begun the work (or was about to), or gone on with it, and no other has put its own
        there since."""
        job = self.partial.job() if self._is_begun else None
        return self._is_begun and (job is None or self._is_ours(job))

    def taken(self) -> FileError:
        return FileError(f"{self.folder}: was removed by another process, which has begun its own work there")

    def busy(self) -> Busy:
        return Busy(f"{self.plan.target}: another process is converting it at this moment; end it first")

    # ---- one file ----

    def is_done(self, file: FilePlan) -> bool:
        return all(status_of(self.finished(name)) is not None for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return self.partial.file(f"{FILES}/{name}")

    def published(self, file: FilePlan) -> str:
        """The path of a file of the target."""
        return self.target if self.plan.single else os.path.join(self.target, *file.name.split("/"))

    def journal(self, file: FilePlan) -> Journal:
        return Journal(self._path(file, "jsonl"))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file, as it was left, open for reading and writing; no other process has it meanwhile."""
        with self._working():
            if not self.is_seen():
                raise self.taken()
            path = self.parts(file)[-1]
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            with closing(open(handle, "r+b", buffering=1 << 20)) as part:
                if not lock(part, wait=False):
                    raise Busy(f"{self.plan.target}: another process is converting {file.path} at this moment")
                yield part

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """The folder's lock, shared: the one that this process has since it began, or one of its own."""
        if self.partial.is_locked:
            yield
            return
        try:
            self.partial.lock(alone=False, wait=True)
        except FileNotFoundError:
            raise self.taken() from None
        try:
            yield
        finally:
            self.partial.release()

    @contextlib.contextmanager
    def external(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file of external data, empty; it has come to the disk when the block ends."""
        with closing(open(self.parts(file)[0], "wb", buffering=1 << 20)) as data:
            yield data
            data.flush()
            os.fsync(data.fileno())

    def parts(self, file: FilePlan) -> list[str]:
        """Where the files of `file.names` are until they are finished."""
        return [os.path.join(self._path(file, "part"), name.rpartition("/")[2]) for name in file.names]

    def remove_parts(self, file: FilePlan) -> None:
        """Have the file written anew."""
        _remove(self.parts(file))

    def remove_finished(self, file: FilePlan) -> None:
        _remove([self.finished(name) for name in file.names])

    def finish(self, file: FilePlan) -> None:
        """Give the written parts, which have come to the disk, their names."""
        # The permissions of the file that is replaced, or those that a plain ``open`` would give.
        mode = mode_of(self.target) if self.plan.single else new_mode()
        for path, name in zip(self.parts(file), file.names, strict=True):
            os.chmod(path, mode)
            folder = self._finished_folder(name)
            os.replace(path, self.finished(name))
            sync_folder(folder)

    def _finished_folder(self, name: str) -> str:
        folder = os.path.dirname(self.finished(name))
        os.makedirs(folder, exist_ok=True)
        return folder

    def _path(self, file: FilePlan, ending: str) -> str:
        return self.partial.file(f"{WORK}/{self.plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet. None are when the target has been written."""
        missing = [file for file in self.plan.files if not self.is_done(file)]
        # Asked for last: somebody may publish what is being counted.
        if self.is_published():
            return []
        if not missing and self.plan.single:
            self._seen = self._results()
        return missing

    def is_worth_keeping(self) -> bool:
        """Whether there is enough finished work for another run to go on with."""
        done = 0
        for file in self.plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING

    def is_published(self) -> bool:
        """Whether the target has been written: by this process, another one, or one that was killed right then."""
        if self.is_whole:
            return True
        if not self.plan.single:
            return done_mark(self.target) == self.plan.fingerprint and all(
                status_of(os.path.join(self.target, *name.split("/"))) is not None for name in self.names
            )
        job = self.partial.job()
        return job is not None and self._is_ours(job) and self.partial.is_complete(job)

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is for this process to publish, to read the journals and to discard them; who comes second waits
        until all that is done, and then asks `check_published`."""
        is_ours = False
        try:
            with contextlib.suppress(FileNotFoundError):
                is_ours = self.partial.lock(alone=True, wait=True) and self.is_seen()
            yield is_ours
        finally:
            self.partial.release()

    def check_published(self) -> None:
        """FileError where another process, which was to publish what this one saw finished, has not done so."""
        is_there = self.is_published()
        if self._seen:
            status = status_of(self.target)
            last = self._seen[-1]
            is_there = status is not None and (status.st_size, status.st_mtime_ns) == (last.size, last.time)
        if not is_there:
            raise FileError(f"{self.folder}: was removed by another process before {self.plan.target} was written")
        self.is_whole = True

    def publish(self) -> None:
        """Put the finished work in the place of the target, unless that has been done; for who has the lock alone.
        FileError where a result is missing."""
        try:
            if not self.is_published():
                self.partial.publish(Job(self.plan.fingerprint), self._results())
            self.is_whole = True
        except BaseException:
            # It may have been interrupted after the last rename.
            with contextlib.suppress(OSError, FileError):
                self.is_whole = self.is_published()
            raise

    def _results(self) -> tuple[Result, ...]:
        """What is given places: the files of a single target, the target the last, or one folder with indexes and mark.
        FileError where one is missing."""
        place = os.path.basename(self.target)
        if self.plan.single:
            places = [*self.names[:-1], place]
            return tuple(
                self.partial.result(f"{FILES}/{name}", to) for name, to in zip(self.names, places, strict=True)
            )
        mark = json.dumps(
            {"source": self.plan.source, "target": self.plan.target, "fingerprint": self.plan.fingerprint}
        )
        for name, text in (*self.plan.indexes, (DONE, mark)):
            self._finished_folder(name)
            with replaced(self.finished(name), 0o666) as file:
                file.write(text.encode())
        for name in self.names:
            self.partial.result(f"{FILES}/{name}", name)
        return (self.partial.result(FILES, place),)

    def discard_alone(self) -> bool:
        """Remove what is of this plan, or of none, if no other process works here; whether that was so."""
        try:
            with contextlib.suppress(FileNotFoundError):
                if not self.partial.lock(alone=True, wait=False):
                    return False
                job = self.partial.job()
                if job is None or self._is_ours(job):
                    self.partial.discard()
            return True
        finally:
            self.partial.release()

    def give_up(self, seconds: float) -> None:
        """Remove it all, though others work here: they notice it, and stop. What of them has not stopped in time is
        left to the next start, which knows that it does not count."""
        self.partial.release()
        if not self.is_seen():
            return
        self.partial.forget()
        deadline = time.monotonic() + seconds
        while not self.discard_alone() and time.monotonic() < deadline:
            time.sleep(0.1)


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
