# SPDX-License-Identifier: Apache-2.0
"""Where unfinished work lies: TARGET.partial, beside the target, until all of it takes the target's place at once.

    job.json          which conversion this is
    published         the files of a single target are being given its names, or have been
    files/            finished files under their final names
    work/7.part/      what is written of file 7 of the plan, under its final names
    work/7.jsonl      the journal of file 7

A folder that is done keeps job.json as .gpucast.json: by it a process that comes late knows that nothing is left to do.
A process holds a lock on the file it works on, which the system lifts when the process dies. So any number of processes
may share the work, and after a kill at any moment the next run goes on with what is there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.locks import lock
from gpucast.checkpoints.streaming.journal import Journal
from gpucast.files import FileError
from gpucast.files.atomic import check_target, closing, mode_of, new_mode, sync_folder
from gpucast.files.inside import within

SUFFIX = ".partial"
_DONE = ".gpucast.json"
#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20


class Busy(FileError):
    """Another process works on the same file."""


class Staging:
    """The unfinished work of a plan."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.target = os.path.realpath(plan.target)
        self.folder = self.target + SUFFIX
        self._files, self._work = os.path.join(self.folder, "files"), os.path.join(self.folder, "work")
        self._job, self._published = (os.path.join(self.folder, name) for name in ("job.json", "published"))
        self._is_begun = False

    def check(self, restart: bool = False) -> None:
        """The errors of `begin`, and nothing else."""
        job, is_stale = self._unfinished(restart)
        if job is None and ((is_stale and self._plan.single) or not self.is_published()):
            self._check_target()

    def _unfinished(self, restart: bool) -> tuple[str | None, bool]:
        """The job to go on with; whether there is one to discard. FileError where it must not be."""
        plan = self._plan
        if within(self.folder, plan.source):
            raise FileError(f"{plan.source}: lies in {self.folder}, which is for unfinished work; move it first")
        job = self._read_job()
        if job is None:
            return None, False
        if restart:
            if not self.is_idle():
                raise Busy(f"{plan.target}: another process is converting it at this moment; end it first")
            return None, True
        if job == plan.fingerprint:
            return job, False
        if self._has_work():
            raise FileError(
                f"{self.folder}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        return None, True

    def begin(self, restart: bool = False) -> None:
        """Begin, or go on with what is there; with `restart`, without it. FileError where neither can be."""
        plan = self._plan
        job, is_stale = self._unfinished(restart)
        if is_stale:
            self.discard()
        if job is None:
            if self.is_published():
                return
            self._check_target()
            self._is_begun = True
            self._make_folders()
            # Several processes may begin at once: all write the same.
            temporary = f"{self._job}.{os.getpid()}"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"source": plan.source, "target": plan.target, "fingerprint": plan.fingerprint}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._job)
        elif not self.is_published():
            # A kill may have left job.json alone.
            self._make_folders()
        self._is_begun = True

    def _make_folders(self) -> None:
        os.makedirs(self._work, exist_ok=True)
        os.makedirs(self._files, exist_ok=True)

    def is_seen(self) -> bool:
        """Whether this process sees what another one has begun for this plan."""
        return self._read_job() == self._plan.fingerprint

    def is_own(self) -> bool:
        """Whether this process has begun the work, or gone on with it, and no other has put its own there since."""
        return self._is_begun and self._read_job() in (None, self._plan.fingerprint)

    def _read_job(self) -> str | None:
        if not os.path.lexists(self.folder):
            return None
        try:
            with open(self._job, encoding="utf-8") as file:
                return str(json.load(file)["fingerprint"])
        except FileNotFoundError:
            names = os.listdir(self.folder) if os.path.isdir(self.folder) else [""]
            if all(name in ("work", "files") or name.startswith("job.json.") for name in names):
                return None
            raise FileError(f"{self.folder}: is in the way, and nothing that gpucast left; remove it") from None
        except (ValueError, KeyError, TypeError, NotADirectoryError):
            raise FileError(f"{self.folder}: is in the way, and nothing that gpucast left; remove it") from None

    def _has_work(self) -> bool:
        # A journal alone is none: it is what remains when all has been published.
        work = [name for _, _, names in os.walk(self._work) for name in names if not name.endswith(".jsonl")]
        return bool(work) or any(names for _, _, names in os.walk(self._files))

    def is_idle(self) -> bool:
        """Whether no process works on a file."""
        for folder, _, names in os.walk(self._work):
            for name in names if folder != self._work else ():
                with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, name), "rb") as part:
                    if not lock(part, wait=False):
                        return False
        return True

    def _check_target(self) -> None:
        target, plan = self.target, self._plan
        parent = os.path.dirname(target)
        if not os.path.isdir(parent):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), plan.target)
        if plan.single:
            check_target(plan.target)
            for name in plan.files[0].names[:-1]:
                if os.path.lexists(os.path.join(parent, name)):
                    raise FileError(
                        f"{os.path.join(parent, name)}: exists, and the external data of {plan.target} would replace "
                        "it; remove it or choose another name"
                    )
        elif os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
            raise FileError(f"{plan.target}: exists already; expected a new or empty folder")

    # ---- one file ----

    def is_done(self, file: FilePlan) -> bool:
        return all(os.path.exists(self.finished(name)) for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return os.path.join(self._files, *name.split("/"))

    def published(self, file: FilePlan) -> str:
        """The path of a file of the target."""
        return self.target if self._plan.single else os.path.join(self.target, *file.name.split("/"))

    def journal(self, file: FilePlan) -> Journal:
        return Journal(self._path(file, "jsonl"))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """The unfinished file, as it was left, open for reading and writing; no other process has it meanwhile."""
        path = self.parts(file)[-1]
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path))
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with closing(open(handle, "r+b", buffering=1 << 20)) as part:
            if not lock(part, wait=False):
                raise Busy(f"{self._plan.target}: another process is converting {file.path} at this moment")
            if not self.is_seen():
                raise self._taken()
            yield part

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

    def finish(self, file: FilePlan, part: BinaryIO) -> None:
        """Give the written parts, which have come to the disk, their names; `part` is the file that `part` gave."""
        if not os.path.samestat(os.fstat(part.fileno()), os.stat(self.parts(file)[-1])):
            raise self._taken()
        for path, name in zip(self.parts(file), file.names, strict=True):
            finished = self.finished(name)
            # First, so that nothing is made where who began the work has removed it all.
            os.chmod(path, self._mode())
            os.makedirs(os.path.dirname(finished), exist_ok=True)
            os.replace(path, finished)
            sync_folder(os.path.dirname(finished))

    def _taken(self) -> FileError:
        return FileError(f"{self.folder}: was removed by another process, which has begun its own work there")

    def _mode(self) -> int:
        """The permissions of the file that is replaced, or those that a plain ``open`` would give."""
        return mode_of(self.target) if self._plan.single else new_mode()

    def _path(self, file: FilePlan, ending: str) -> str:
        return os.path.join(self._work, f"{self._plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet. None are when the target has been written."""
        return [] if self.is_published() else [file for file in self._plan.files if not self.is_done(file)]

    def is_published(self) -> bool:
        """Whether the target has been written: by this process, another one, or one that was killed right then."""
        if not self._plan.single:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                with open(os.path.join(self.target, _DONE), encoding="utf-8") as job:
                    names = [name for file in self._plan.files for name in file.names]
                    names += [name for name, _ in self._plan.indexes]
                    return bool(json.load(job)["fingerprint"] == self._plan.fingerprint) and all(
                        os.path.exists(os.path.join(self.target, name)) for name in names
                    )
            return False
        file = self._plan.files[0]
        names = [self.finished(file.name), self.parts(file)[-1]]
        return os.path.exists(self._published) and not any(map(os.path.exists, names))

    @contextlib.contextmanager
    def concluding(self) -> Iterator[bool]:
        """Whether it is for this process to publish, to read the journals and to discard them; who comes second waits
        until all that is done."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                lock(stack.enter_context(open(self._job, "rb")), wait=True)
            yield self.is_seen()

    def publish(self) -> None:
        """Put the finished work in the place of the target, if a process that was killed has not done so."""
        if self.is_published():
            return
        if self._plan.single:
            self._publish_file()
        else:
            self._publish_folder()

    def _publish_file(self) -> None:
        (file,) = self._plan.files
        with open(self._published, "wb"):
            pass
        parent = os.path.dirname(self.target)
        for name in file.names:
            where = self.target if name == file.name else os.path.join(parent, name)
            if os.path.exists(self.finished(name)):
                os.replace(self.finished(name), where)
        sync_folder(parent)

    def _publish_folder(self) -> None:
        for name, text in self._plan.indexes:
            path = self.finished(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        shutil.copyfile(self._job, self.finished(_DONE))
        if os.path.isdir(self.target):
            # Empty, or this fails.
            os.rmdir(self.target)
        os.replace(self._files, self.target)
        sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        """Remove it all; which conversion it was goes last, so that a kill in between leaves nothing that misleads."""
        for folder in (self._work, self._files):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
        for path in (self._published, self._job):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def is_worth_keeping(self) -> bool:
        """Whether there is enough finished work for another run to go on with."""
        done = 0
        for file in self._plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING
