# SPDX-License-Identifier: Apache-2.0
"""The work of a plan: begun or gone on with in TARGET.partial, done file by file, given its place by a rename.

    files/            finished files under their final names
    work/7.part/      what is written of file 7 of the plan, under its final names
    work/7.jsonl      the journal of file 7

A process has the folder's lock while it works (shares of one conversion have it together), and a lock on the file that
it writes; the system lifts locks when a process dies. So after a kill at any moment the next run goes on with what is
there (docs/checkpoints.md has the table).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.locks import lock
from gpucast.checkpoints.running.partial import FILES, WORK, Job, Partial
from gpucast.checkpoints.running.place import check_place, check_space
from gpucast.checkpoints.streaming.journal import Journal
from gpucast.core.places import closing, resolved, status_of, sync_folder
from gpucast.files import FileError, limits
from gpucast.files.atomic import check_target, mode_of, new_mode
from gpucast.files.inside import open_regular, within

#: In a written folder: which conversion it is of, by which a process that comes late knows that nothing is left to do.
_DONE = ".gpucast.json"
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
        self.partial = Partial(self.target)
        self.folder = self.partial.path
        self._parent, self._place = os.path.split(self.target)
        self._paths = {"source": plan.source, "target": plan.target}
        self._names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]
        self._is_begun = False
        #: Whether this process has written the target, or found it written.
        self.is_whole = False

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """The errors of `begin`, and nothing else."""
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
        self._check_target()

    def _going_on(self, restart: bool) -> Job | None:
        """The job to go on with; None where there is none, or one to discard. FileError where it must not be."""
        job = self._job()
        if job is None and not restart and self.partial.job() is not None and self.partial.has_work():
            raise FileError(
                f"{self.folder}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        return None if restart else job

    def begin(self, restart: bool = False, is_share: bool = False) -> None:
        """Begin, or go on with what is there; with `restart`, without it. FileError where neither can be.

        From then on this process has the lock, with other shares if it is one; nobody has where the target is written
        and nothing unfinished is left.
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
        """With the lock held alone: write the job down, or go on giving results their places."""
        job = self._going_on(restart)
        if job is None:
            if not restart and self.is_published():
                self.partial.discard()
                return
            self.partial.forget()
            self.partial.clear()
            self._check_target()
            job = Job(self.plan.fingerprint, self._paths)
            self.partial.write(job)
        # A kill may have left the job alone.
        for name in (WORK, FILES):
            os.makedirs(self.partial.file(name), exist_ok=True)
        if job.publishing is not None:
            self._complete(job.publishing)

    def _check_target(self) -> None:
        target, plan = self.target, self.plan
        check_place(target, plan.target)
        if plan.single:
            check_target(plan.target)
            if not plan.overwrite and status_of(target) is not None:
                raise FileError(f"{plan.target}: exists already; give --overwrite to replace it, or another name")
            for name in self._names[:-1]:
                if status_of(self._placed(name)) is not None:
                    raise FileError(
                        f"{self._placed(name)}: exists, and the external data of {plan.target} would replace it; "
                        "remove it or choose another name"
                    )
        elif status_of(target) is not None and not (os.path.isdir(target) and not os.listdir(target)):
            raise FileError(f"{plan.target}: exists already; expected a new or empty folder")
        check_space(target, plan.files, plan.target)

    # ---- whose work this is ----

    def _job(self) -> Job | None:
        """The job that is there, if it is of this plan."""
        job = self.partial.job()
        return job if job is not None and job.fingerprint == self.plan.fingerprint else None

    def is_seen(self) -> bool:
        """Whether this process sees what it, or another one, has begun for this plan."""
        return self._job() is not None

    def is_own(self) -> bool:
        """Whether this process has begun the work (or was about to), or gone on with it, and no other has put its own
        there since."""
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
        """The folder's lock: the one that this process has since it began, or one of its own, shared."""
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

    @contextlib.contextmanager
    def external(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file of external data, empty; it has come to the disk when the block ends."""
        with _durable(self.parts(file)[0]) as data:
            yield data

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
            os.replace(path, self._made(name))
            sync_folder(os.path.dirname(self.finished(name)))

    def _made(self, name: str) -> str:
        """The path of a finished file, whose folder is there."""
        os.makedirs(os.path.dirname(self.finished(name)), exist_ok=True)
        return self.finished(name)

    def _path(self, file: FilePlan, ending: str) -> str:
        return self.partial.file(f"{WORK}/{self.plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet. None are when the target has been written."""
        missing = [file for file in self.plan.files if not self.is_done(file)]
        # Asked for last: another share may publish what is being counted.
        return [] if self.is_published() else missing

    def is_worth_keeping(self) -> bool:
        """Whether there is enough finished work for another run to go on with, or a result has its place already."""
        job = self._job()
        if job is not None and job.publishing is not None and any(map(self._is_placed, job.publishing.items())):
            return True
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
            return _done_mark(self.target) == self.plan.fingerprint and all(
                status_of(os.path.join(self.target, *name.split("/"))) is not None for name in self._names
            )
        job = self._job()
        return job is not None and job.publishing is not None and all(map(self._is_placed, job.publishing.items()))

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is for this process to publish, to read the journals and to discard them. Of several shares one
        does; the others wait until all that is done. FileError where the work is gone, and the target not written."""
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
        """Put the finished work in the place of the target, unless that has been done; for who has the lock alone.
        FileError where a result is missing."""
        try:
            if self.is_published():
                pass
            elif self.plan.single:
                self._publish_files()
            else:
                self._publish_folder()
            self.is_whole = True
        except BaseException:
            # It may have been interrupted after the last rename.
            with contextlib.suppress(OSError, FileError):
                self.is_whole = self.is_published()
            raise

    def _publish_folder(self) -> None:
        mark = json.dumps(self._paths | {"fingerprint": self.plan.fingerprint})
        for name, text in (*self.plan.indexes, (_DONE, mark)):
            with _durable(self._made(name)) as file:
                file.write(text.encode())
            sync_folder(os.path.dirname(self.finished(name)))
        for name in self._names:
            self._known(name)
        if os.name == "nt" and os.path.isdir(self.target):
            # Windows replaces no folder, not even an empty one.
            os.rmdir(self.target)
        os.replace(self.partial.file(FILES), self.target)
        sync_folder(self._parent)

    def _publish_files(self) -> None:
        """Several files cannot take their places at once: they are written down first, and the last one counts."""
        publishing = {name: self._known(name) for name in self._names}
        self.partial.write(Job(self.plan.fingerprint, self._paths, publishing))
        self._complete(publishing)

    def _complete(self, publishing: dict[str, tuple[int, int]]) -> None:
        """Give files that are written down their places, where they have not got them."""
        for name, known in publishing.items():
            place, is_there = self._placed(name), self._is_placed((name, known))
            if not is_there and status_of(self.finished(name)) is None:
                raise FileError(
                    f"{place}: was being written, and is neither there nor in {self.folder} as it was; "
                    "give --restart to begin anew"
                )
            may_replace = name == self._names[-1] and self.plan.overwrite
            if not is_there and not may_replace and status_of(place) is not None:
                raise FileError(f"{place}: exists, and would be replaced; remove it or choose another name")
        for name in publishing:
            if status_of(self.finished(name)) is not None:
                os.replace(self.finished(name), self._placed(name))
        sync_folder(self._parent)

    def _placed(self, name: str) -> str:
        """The place of a file of a single target, which may have another name than its plan says."""
        return os.path.join(self._parent, self._place if name == self._names[-1] else name)

    def _is_placed(self, result: tuple[str, tuple[int, int]]) -> bool:
        name, known = result
        return status_of(self.finished(name)) is None and _size_and_time(self._placed(name)) == known

    def _known(self, name: str) -> tuple[int, int]:
        """By which a finished file is known in its place. FileError where it is missing."""
        known = _size_and_time(self.finished(name))
        if known is None:
            raise FileError(f"{self.finished(name)}: was finished, and is not there")
        return known

    def discard_alone(self) -> bool:
        """Remove what is of this plan, or of none, if no other process works here; whether that was so."""
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


@contextlib.contextmanager
def _durable(path: str) -> Iterator[BinaryIO]:
    """A new file, which has come to the disk when the block ends."""
    with closing(open(path, "wb", buffering=1 << 20)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _size_and_time(path: str) -> tuple[int, int] | None:
    """Bytes, and the time of the last change in nanoseconds; None where no regular file is."""
    status = status_of(path)
    return None if status is None or not stat.S_ISREG(status.st_mode) else (status.st_size, status.st_mtime_ns)


def _done_mark(folder: str) -> str | None:
    """The fingerprint that a written folder bears; None where it bears none."""
    try:
        with open_regular(os.path.join(folder, _DONE)) as file:
            # Anybody may have made it.
            return str(limits.parsed_json(file.read(limits.CONFIG).decode())["fingerprint"])
    except (FileNotFoundError, NotADirectoryError, FileError, ValueError, KeyError, TypeError):
        return None


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
