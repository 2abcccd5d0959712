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
import json
import os
import time
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import FilePlan, Plan
from gpucast.checkpoints.running import job as jobs
from gpucast.checkpoints.running.directory import Directory
from gpucast.checkpoints.running.held import Held
from gpucast.checkpoints.running.job import Job, Result
from gpucast.checkpoints.running.locks import lock
from gpucast.checkpoints.running.place import check_place
from gpucast.checkpoints.running.publication import Publication, result_of
from gpucast.checkpoints.streaming.journal import Journal
from gpucast.core.places import resolved, status_of
from gpucast.files import FileError
from gpucast.files.atomic import check_target, closing, mode_of, new_mode
from gpucast.files.inside import within

SUFFIX = ".partial"
_DONE = ".gpucast.json"
_FILES, _WORK = "files", "work"
#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20
#: How often, and how long apart, a start looks again while another one is at the same.
_LOOKS, _APART = 100, 0.05


class Busy(FileError):
    """Another process works on the same file."""


class Staging:
    """The unfinished work of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.target = resolved(plan.target)
        self.folder = self.target + SUFFIX
        self._names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]
        self._told = {"source": plan.source, "target": plan.target}
        self._held = Held(self.folder)
        self._is_begun = False
        #: What was finished when this process last saw all of it.
        self._results: tuple[Result, ...] | None = None
        #: Whether this process has written the target, or found it written.
        self.is_whole = False

    # ---- the folder, and who has it ----

    def _own(self) -> Directory:
        folder = self._held.here()
        if folder is None:
            raise self._taken()
        return folder

    def release(self) -> None:
        """Let others publish or discard: this process no longer works here."""
        self._held.release()

    def _read_job(self) -> Job | None:
        folder = self._held.look()
        return None if folder is None else jobs.read(folder)

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """The errors of `begin`, and nothing else."""
        job, is_stale = self._unfinished(restart)
        if is_stale and not restart and self._is_tidied_up():
            return
        if job is None and ((is_stale and self._plan.single) or not self.is_published()):
            self._check_target()

    def _unfinished(self, restart: bool) -> tuple[Job | None, bool]:
        """The job to go on with; whether there is one to discard. FileError where it must not be."""
        plan = self._plan
        if within(self.folder, plan.source):
            raise FileError(f"{plan.source}: lies in {self.folder}, which is for unfinished work; move it first")
        job = self._read_job()
        if job is None:
            return None, False
        if restart:
            if not self._held.is_locked and not self.is_idle():
                raise self._busy()
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

        What another run was publishing when it ended is completed; what it was discarding is discarded.
        """
        for _ in range(_LOOKS):
            self.release()
            if self.is_whole:
                return
            job, is_stale = self._unfinished(restart)
            if job is None and not is_stale and self._held.look() is None:
                if self.is_published():
                    return
                self._check_target()
            with contextlib.suppress(FileNotFoundError):
                if job is not None and self._go_on(job):
                    return
                # Who publishes or discards comes to an end; who has only just begun may work for long.
                is_ending = not restart and self._is_ending()
                if self._held.acquire(is_ending, shared=False, make=job is None and not is_stale):
                    restart = self._mend(restart)
                    continue
            # Another process does the same at this moment, or works on.
            time.sleep(_APART)
        raise self._busy()

    def _go_on(self, job: Job) -> bool:
        """Whether this process now shares the work of a job, or what is left to do when it is published."""
        self._held.acquire(wait=True, shared=True)
        if self._read_job() != job:
            return False
        if job.publishing is None:
            # A kill may have left job.json alone.
            self._make_folders()
        elif not self._publication(self._own(), job).is_complete():
            return False
        self._is_begun = True
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
            try:
                self._check_target()
                jobs.write(self._own(), Job(self._plan.fingerprint), self._told)
                self._make_folders()
            except BaseException:
                with contextlib.suppress(OSError, FileError):
                    self.discard()
                raise
        elif job.publishing is not None:
            self._publication(self._own(), job).complete()
        return restart

    def _is_ending(self) -> bool:
        job = self._read_job()
        return job is not None and (job.is_discarded or job.publishing is not None)

    def _is_tidied_up(self) -> bool:
        folder = self._own()
        job = jobs.read(folder)
        is_ours = job is not None and job.fingerprint == self._plan.fingerprint
        return job is not None and is_ours and self._publication(folder, job).is_complete()

    def _make_folders(self) -> None:
        folder = self._own()
        folder.make(_WORK)
        folder.make(_FILES)

    def is_seen(self) -> bool:
        """Whether this process sees what another one has begun for this plan."""
        job = self._read_job()
        return job is not None and not job.is_discarded and job.fingerprint == self._plan.fingerprint

    def is_own(self) -> bool:
        """Whether this process has begun the work, or gone on with it, and no other has put its own there since."""
        job = self._read_job() if self._is_begun else None
        return self._is_begun and (job is None or (not job.is_discarded and job.fingerprint == self._plan.fingerprint))

    def _has_work(self) -> bool:
        # A journal alone is none: it is what remains when all has been published.
        folder = self._held.here()
        if folder is None:
            return False
        work = (name for name in folder.files(_WORK) if not name.endswith(".jsonl"))
        return any(True for _ in work) or any(True for _ in folder.files(_FILES))

    def is_idle(self) -> bool:
        """Whether no process works here."""
        folder = self._held.look()
        return folder is None or jobs.is_idle(folder)

    def _check_target(self) -> None:
        target, plan = self.target, self._plan
        check_place(target, plan.target)
        if plan.single:
            check_target(plan.target)
            parent = os.path.dirname(target)
            for name in self._names[:-1]:
                if status_of(os.path.join(parent, name)) is not None:
                    raise FileError(
                        f"{os.path.join(parent, name)}: exists, and the external data of {plan.target} would replace "
                        "it; remove it or choose another name"
                    )
        elif status_of(target) is not None and not (os.path.isdir(target) and not os.listdir(target)):
            raise FileError(f"{plan.target}: exists already; expected a new or empty folder")

    # ---- one file ----

    def is_done(self, file: FilePlan) -> bool:
        folder = self._held.here()
        return folder is not None and all(folder.status(_inside(name)) is not None for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return os.path.join(self.folder, _inside(name))

    def published(self, file: FilePlan) -> str:
        """The path of a file of the target."""
        return self.target if self._plan.single else os.path.join(self.target, *file.name.split("/"))

    def journal(self, file: FilePlan) -> Journal:
        folder, path = self._held.here(), self._path(file, "jsonl")
        if folder is None:
            return Journal(os.path.join(self.folder, path))
        return Journal(path, folder.opener, lambda name, to: folder.replace(name, folder, to))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file, as it was left, open for reading and writing; no other process has it meanwhile."""
        with self._working():
            if not self.is_seen():
                raise self._taken()
            folder, path = self._own(), self._parts(file)[-1]
            folder.make(os.path.dirname(path))
            handle = folder.open(path, os.O_RDWR | os.O_CREAT)
            with closing(open(handle, "r+b", buffering=1 << 20)) as part:
                if not lock(part, wait=False):
                    raise Busy(f"{self._plan.target}: another process is converting {file.path} at this moment")
                yield part

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """The job's lock, shared: the one that this process has since it began, or one of its own."""
        if self._held.is_locked:
            yield
            return
        try:
            if self._read_job() is None:
                raise self._taken()
            self._held.acquire(wait=True, shared=True)
        except FileNotFoundError:
            raise self._taken() from None
        try:
            yield
        finally:
            self.release()

    @contextlib.contextmanager
    def external(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file of external data, empty; it has come to the disk when the block ends."""
        handle = self._own().open(self._parts(file)[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
        self._remove([_inside(name) for name in file.names])

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                self._own().unlink(path)

    def finish(self, file: FilePlan, part: BinaryIO) -> None:
        """Give the written parts, which have come to the disk, their names; `part` is the file that `part` gave."""
        # By its path: another folder may have the name of this one.
        if not os.path.samestat(os.fstat(part.fileno()), os.lstat(self.parts(file)[-1])):
            raise self._taken()
        folder = self._own()
        for path, name in zip(self._parts(file), file.names, strict=True):
            finished = _inside(name)
            folder.set_mode(path, self._mode())
            folder.make_all(os.path.dirname(finished))
            folder.replace(path, folder, finished)
            folder.sync(os.path.dirname(finished))

    def _taken(self) -> FileError:
        return FileError(f"{self.folder}: was removed by another process, which has begun its own work there")

    def _busy(self) -> Busy:
        return Busy(f"{self._plan.target}: another process is converting it at this moment; end it first")

    def _mode(self) -> int:
        """The permissions of the file that is replaced, or those that a plain ``open`` would give."""
        return mode_of(self.target) if self._plan.single else new_mode()

    def _path(self, file: FilePlan, ending: str) -> str:
        return os.path.join(_WORK, f"{self._plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet. None are when the target has been written."""
        with contextlib.ExitStack() as stack:
            if not self._held.is_locked and self._read_job() is not None:
                # So that nobody moves them while they are counted.
                with contextlib.suppress(FileNotFoundError):
                    self._held.acquire(wait=True, shared=True)
                    stack.callback(self.release)
            if self.is_published():
                return []
            missing = [file for file in self._plan.files if not self.is_done(file)]
            if not missing and self._plan.single:
                self._results = self._finished_results()
            return missing

    def is_published(self) -> bool:
        """Whether the target has been written: by this process, another one, or one that was killed right then."""
        if self.is_whole:
            return True
        if self._plan.single:
            folder = self._held.here()
            job = None if folder is None else jobs.read(folder)
            if folder is None or job is None or job.is_discarded or job.fingerprint != self._plan.fingerprint:
                return False
            if not self._publication(folder, job).is_complete():
                return False
            self._results = job.publishing
            return True
        found = status_of(self.target)
        if found is None:
            return False
        try:
            target = Directory(self.target)
        except NotADirectoryError:
            return False
        return jobs.read_done(target, _DONE) == self._plan.fingerprint and all(
            target.status(name) is not None for name in self._names
        )

    def _publication(self, folder: Directory, job: Job) -> Publication:
        return Publication(folder, self._held.parent, job, self._told)

    def _finished_results(self) -> tuple[Result, ...]:
        """The results that are given places one by one, the target the last. FileError where one is missing."""
        folder, names = self._own(), self._names
        places = [*names[:-1], os.path.basename(self.target)]
        return tuple(result_of(folder, _inside(name), place) for name, place in zip(names, places, strict=True))

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is for this process to publish, to read the journals and to discard them; who comes second waits
        until all that is done. FileError where somebody has discarded it all instead."""
        is_ours = False
        try:
            with contextlib.suppress(FileNotFoundError):
                self._held.acquire(wait=True, shared=False)
                is_ours = self.is_seen()
            yield is_ours
        finally:
            self.release()

    def check_published(self) -> None:
        """FileError where another process, which was to publish what this one saw finished, has not done so."""
        if self._plan.single and self._results is not None:
            last = self._results[-1]
            found = self._held.parent.status(last.place)
            is_there = found is not None and (found.st_size, found.st_mtime_ns) == (last.size, last.time)
        else:
            is_there = self.is_published()
        if not is_there:
            raise FileError(f"{self.folder}: was removed by another process before {self._plan.target} was written")
        self.is_whole = True

    def publish(self) -> None:
        """Put the finished work in the place of the target, unless that has been done; for who has the job's lock
        alone. FileError where a result is missing, OSError: then nothing has been put there."""
        if not self.is_published():
            results = self._finished_results() if self._plan.single else (self._finished_folder(),)
            self._publication(self._own(), Job(self._plan.fingerprint)).publish(results)
        self.is_whole = True

    def _finished_folder(self) -> Result:
        folder = self._own()
        for name, text in self._plan.indexes:
            path = _inside(name)
            folder.make_all(os.path.dirname(path))
            jobs.write_text(folder, path, text)
        for name in self._names:
            result_of(folder, _inside(name), name)
        jobs.write_text(folder, _inside(_DONE), json.dumps(self._told | {"fingerprint": self._plan.fingerprint}))
        folder.sync(_FILES)
        return Result(_FILES, os.path.basename(self.target), done=_DONE)

    def discard(self) -> None:
        """Remove it all, and take back what has been published of a part; for who has the job's lock alone."""
        folder = self._held.here()
        if folder is None:
            return
        job = None
        with contextlib.suppress(FileError):
            job = jobs.read(folder)
        if job is not None and job.publishing is not None:
            self._publication(folder, job).undo()
        jobs.discard(folder, self._held.parent)

    def discard_alone(self) -> bool:
        """Remove it all if no other process works here; whether that was so."""
        with contextlib.suppress(FileNotFoundError):
            if not self._held.acquire(wait=False, shared=False):
                return False
            try:
                if self.is_own():
                    self.discard()
            finally:
                self.release()
        return True

    def give_up(self, seconds: float) -> None:
        """Remove it all, though others work here: they notice it, and stop. What of them has not stopped in time is
        left to the next start, which knows that it does not count."""
        self.release()
        folder = self._held.look()
        if folder is None:
            return
        jobs.mark_discarded(folder)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self._held.acquire(wait=False, shared=False):
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

    def is_worth_keeping(self) -> bool:
        """Whether there is enough finished work for another run to go on with."""
        done = 0
        for file in self._plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING


def _inside(name: str) -> str:
    """Where a finished file lies in the folder, by its name with slashes."""
    return os.path.join(_FILES, *name.split("/"))
