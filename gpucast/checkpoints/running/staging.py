# SPDX-License-Identifier: Apache-2.0
"""Where unfinished work lies: TARGET.partial, beside the target, until all of it takes the target's place at once.

    job.json          which conversion this is, and what of it is being published (`gpucast.checkpoints.running.job`)
    lock              shared by who works, held alone by who publishes or discards
    files/            finished files under their final names
    work/7.part/      what is written of file 7 of the plan, under its final names
    work/7.jsonl      the journal of file 7

A folder that is done has .gpucast.json, by which a process that comes late knows that nothing is left to do.
A process also holds a lock on the file it works on; the system lifts locks when a process dies. So any number of
processes may share the work, and after a kill at any moment the next run goes on with what is there, or completes what
was being published, or removed (docs/checkpoints.md has the table). The folder is this user's alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import FilePlan
from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.job import Job
from gpucast.checkpoints.running.locks import lock
from gpucast.checkpoints.running.place import check_place, check_space
from gpucast.checkpoints.running.unfinished import FILES, Busy, Unfinished, path_of
from gpucast.checkpoints.streaming.journal import Journal
from gpucast.core.places import status_of
from gpucast.files import FileError
from gpucast.files.atomic import check_target, closing, mode_of, new_mode
from gpucast.files.inside import within

_WORK = "work"
#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20
#: How often, and how long apart, a start looks again while another one is at the same.
_LOOKS, _APART = 100, 0.05


class Staging(Unfinished):
    """The work of a plan: begun, done file by file, counted."""

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """The errors of `begin`, and nothing else."""
        job, is_stale = self._unfinished(restart)
        if is_stale and not restart and self._is_tidied_up():
            return
        if job is None and ((is_stale and self.plan.single) or not self.is_published()):
            self._check_target()

    def _unfinished(self, restart: bool) -> tuple[Job | None, bool]:
        """The job to go on with; whether there is one to discard. FileError where it must not be."""
        plan = self.plan
        if within(self.folder, plan.source):
            raise FileError(f"{plan.source}: lies in {self.folder}, which is for unfinished work; move it first")
        job = self.read_job()
        if job is None:
            return None, False
        if restart:
            if not self.held.is_locked and not self.is_idle():
                raise self.busy()
            return None, True
        if job.is_discarded:
            return None, True
        if job.fingerprint == plan.fingerprint:
            return job, False
        if self._has_work():
            raise FileError(
                f"{self.folder}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        return None, True

    def begin(self, restart: bool = False) -> None:
        """Begin, or go on with what is there; with `restart`, without it. FileError where neither can be.

        What another run was publishing when it ended is completed; what it was discarding is discarded. After an error
        the folder may have been made; then `is_own` says so.
        """
        for _ in range(_LOOKS):
            self.release()
            if self.is_whole:
                return
            job, is_stale = self._unfinished(restart)
            if job is None and not is_stale and self.held.look() is None:
                if self.is_published():
                    if restart:
                        raise FileError(
                            f"{self.plan.target}: is finished, and --restart discards unfinished work alone; remove "
                            "it to convert it again"
                        )
                    return
                self._check_target()
            with contextlib.suppress(FileNotFoundError):
                if job is not None and self._go_on(job):
                    return
                # Who publishes or discards comes to an end; who has only just begun may work for long.
                is_ending = not restart and self._is_ending()
                # Said before the folder is made: whatever interrupts the next steps, `is_own` knows of them.
                self.is_begun = True
                if self.held.acquire(is_ending, shared=False, make=job is None and not is_stale):
                    restart = self._mend(restart)
                    continue
            # Another process does the same at this moment, or works on.
            time.sleep(_APART)
        raise self.busy()

    def _go_on(self, job: Job) -> bool:
        """Whether this process now shares the work of a job, or what is left to do when it is published."""
        self.held.acquire(wait=True, shared=True)
        if self.read_job() != job:
            return False
        if job.publishing is None:
            # A kill may have left job.json alone.
            self._make_folders()
        elif not self.publication(self.own(), job).is_complete():
            return False
        self.is_begun = True
        return True

    def _mend(self, restart: bool) -> bool:
        """With the lock held alone: write the job down, or complete what was being published, or discard what does not
        count. Whether there still is something that `restart` means."""
        job, is_stale = self._unfinished(restart)
        if is_stale:
            # Of this very conversion, that was killed when it had published all and tidied up.
            self.is_whole = not restart and self._is_tidied_up()
            self.discard()
            return False
        if job is None and self.is_published():
            # An empty folder is left over.
            self.discard()
        elif job is None:
            self._check_target()
            jobs.write(self.own(), Job(self.plan.fingerprint), self.paths)
            self._make_folders()
        elif job.publishing is not None:
            self.publication(self.own(), job).complete()
        return restart

    def _is_ending(self) -> bool:
        job = self.read_job()
        return job is not None and (job.is_discarded or job.publishing is not None)

    def _is_tidied_up(self) -> bool:
        folder = self.own()
        job = jobs.read(folder)
        is_ours = job is not None and job.fingerprint == self.plan.fingerprint
        return job is not None and is_ours and self.publication(folder, job).is_complete()

    def _make_folders(self) -> None:
        folder = self.own()
        folder.make(_WORK)
        folder.make(FILES)

    def _has_work(self) -> bool:
        # A journal alone is none: it is what remains when all has been published.
        folder = self.held.here()
        if folder is None:
            return False
        work = (name for name in folder.files(_WORK) if not name.endswith(".jsonl"))
        return any(True for _ in work) or any(True for _ in folder.files(FILES))

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

    # ---- one file ----

    def published(self, file: FilePlan) -> str:
        """The path of a file of the target."""
        return self.target if self.plan.single else os.path.join(self.target, *file.name.split("/"))

    def journal(self, file: FilePlan) -> Journal:
        folder, path = self.held.here(), self._path(file, "jsonl")
        if folder is None:
            return Journal(os.path.join(self.folder, path))
        return Journal(path, folder.opener, lambda name, to: folder.replace(name, folder, to))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file, as it was left, open for reading and writing; no other process has it meanwhile."""
        with self._working():
            if not self.is_seen():
                raise self.taken()
            folder, path = self.own(), self._parts(file)[-1]
            folder.make(os.path.dirname(path))
            handle = folder.open(path, os.O_RDWR | os.O_CREAT)
            with closing(open(handle, "r+b", buffering=1 << 20)) as part:
                if not lock(part, wait=False):
                    raise Busy(f"{self.plan.target}: another process is converting {file.path} at this moment")
                yield part

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """The job's lock, shared: the one that this process has since it began, or one of its own."""
        if self.held.is_locked:
            yield
            return
        try:
            if self.read_job() is None:
                raise self.taken()
            self.held.acquire(wait=True, shared=True)
        except FileNotFoundError:
            raise self.taken() from None
        try:
            yield
        finally:
            self.release()

    @contextlib.contextmanager
    def external(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file of external data, empty; it has come to the disk when the block ends."""
        handle = self.own().open(self._parts(file)[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with closing(open(handle, "wb", buffering=1 << 20)) as data:
            yield data
            data.flush()
            os.fsync(data.fileno())

    def parts(self, file: FilePlan) -> list[str]:
        """Where the files of `file.names` are until they are finished."""
        return [os.path.join(self.folder, path) for path in self._parts(file)]

    def _parts(self, file: FilePlan) -> list[str]:
        return [os.path.join(self._path(file, "part"), name.rpartition("/")[2]) for name in file.names]

    def remove_parts(self, file: FilePlan) -> None:
        """Have the file written anew."""
        self._remove(self._parts(file))

    def remove_finished(self, file: FilePlan) -> None:
        self._remove([path_of(name) for name in file.names])

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self.own().unlink(path)

    def finish(self, file: FilePlan, part: BinaryIO) -> None:
        """Give the written parts, which have come to the disk, their names; `part` is the file that `part` gave."""
        # By its path: another folder may have the name of this one.
        if not os.path.samestat(os.fstat(part.fileno()), os.lstat(self.parts(file)[-1])):
            raise self.taken()
        folder = self.own()
        for path, name in zip(self._parts(file), file.names, strict=True):
            finished = path_of(name)
            folder.set_mode(path, self._mode())
            folder.make_all(os.path.dirname(finished))
            folder.replace(path, folder, finished)
            folder.sync(os.path.dirname(finished))

    def _mode(self) -> int:
        """The permissions of the file that is replaced, or those that a plain ``open`` would give."""
        return mode_of(self.target) if self.plan.single else new_mode()

    def _path(self, file: FilePlan, ending: str) -> str:
        return os.path.join(_WORK, f"{self.plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet. None are when the target has been written."""
        with contextlib.ExitStack() as stack:
            if not self.held.is_locked and self.read_job() is not None:
                # So that nobody moves them while they are counted.
                with contextlib.suppress(FileNotFoundError):
                    self.held.acquire(wait=True, shared=True)
                    stack.callback(self.release)
            if self.is_published():
                return []
            missing = [file for file in self.plan.files if not self.is_done(file)]
            if not missing and self.plan.single:
                self.results = self.finished_results()
            return missing

    def is_worth_keeping(self) -> bool:
        """Whether there is enough finished work for another run to go on with."""
        done = 0
        for file in self.plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING
