# SPDX-License-Identifier: Apache-2.0
"""The unfinished work of a plan, in the folder OUT.partial: begun or continued, done file by file, renamed at the end.

    lock            held by a run alone, or together by the shares of one conversion
    job.json        which conversion this is; without it nothing in the folder counts
    work/7.part/    written parts of file 7 of the plan, under its final names
    work/7.jsonl    the journal of file 7
    files/          finished files under their final names

The folder is created first and removed last, together with its lock. The system releases locks when a process dies. So
after a kill at any moment the next run continues from the files on disk (docs/checkpoints.md has the table).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from typing import BinaryIO, Literal

from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.convert.running import target
from gpucast.convert.running.work_folder import LOCK, WorkFolder, lock, remove
from gpucast.convert.streaming.checksums import Journal
from gpucast.core.places import closing, durable, replaced, resolved, status_of, sync_folder
from gpucast.files import FileError
from gpucast.files.atomic import mode_of, new_mode, within

#: After an error, less than this many finished bytes are removed rather than left for the next run.
WORTH_KEEPING = 64 << 20
#: How many seconds a start waits for another process, and how many it sleeps between two looks.
_PATIENCE, _APART = 5, 0.05
_JOB, _WORK, _FILES = "job.json", "work", "files"
#: The work in the folder is of no plan, of another one, or of this one: begun, or finished and being published.
_State = Literal["none", "other", "begun", "publishing"]


class Busy(FileError):
    """Another process writes the same file."""


class UnfinishedWork:
    """The unfinished work of a plan, if there is any."""

    def __init__(self, plan: ConversionPlan) -> None:
        self.plan = plan
        # A link keeps pointing where it does: the file behind it is replaced.
        self.target = resolved(plan.target)
        self.folder = WorkFolder(self.target + ".partial")
        self._names = [name for file in plan.files for name in file.names] + [name for name, _ in plan.indexes]
        self._is_begun = False
        #: Whether this process has written the target, or found it written.
        self.is_whole = False

    # ---- beginning ----

    def check(self, restart: bool = False) -> None:
        """Raise the errors of `begin` that do not come from other processes, and do nothing else."""
        if within(self.folder.path, self.plan.source):
            raise FileError(
                f"{self.plan.source}: lies in {self.folder.path}, which is for unfinished work; move it first"
            )
        state = self._state()
        if not restart and state in ("begun", "publishing"):
            try:
                if not self.plan.single:
                    target.check_empty(self.plan, self.target)
            except FileError:
                # Another share may have published just now.
                if not self.is_published():
                    raise
            return
        if not restart and state == "other" and self._has_work():
            raise FileError(
                f"{self.folder.path}: holds unfinished work of another conversion (other files, options or version of "
                "gpucast); finish that one with its own command, or give --restart to discard it"
            )
        if not (restart and state != "none") and self.is_published():
            if restart:
                raise FileError(
                    f"{self.plan.target}: is finished, and --restart discards unfinished work alone; remove it to "
                    "convert it again"
                )
            return
        self._check_target()

    def _check_target(self) -> None:
        target.check(self.plan, self.target, [self._placed(name) for name in self._names[:-1]])

    def begin(self, restart: bool = False, is_share: bool = False) -> None:
        """Begin the work or continue it; `restart` begins anew. FileError if neither is possible.

        Afterwards this process holds the lock, together with other shares if it is one. Once the target is written and
        nothing unfinished is left, no process holds it.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            self.check(restart)
            if status_of(self.folder.path) is None and self.is_published():
                return
            # Said before the folder is made: whatever interrupts the next steps, `is_own` knows of them.
            self._is_begun = True
            if is_share and not restart and self.join():
                return
            if self.folder.take(alone=True, make=True):
                self._mend(restart)
                restart = False
                # If the lock is gone, a rest was discarded: look again.
                if self.folder.is_alone and (not is_share or self.is_published()):
                    return
            elif time.monotonic() > deadline:
                raise self.busy()
            else:
                time.sleep(_APART)

    def join(self) -> bool:
        """Share the work that another process has begun, and its lock. False if there is none, or if it is locked."""
        # Asked again: a process may have been killed in between while it published, which only one alone continues.
        return self._state() == "begun" and self.folder.take(alone=False) and self._state() == "begun"

    def busy(self) -> Busy:
        return Busy(f"{self.plan.target}: another process is converting it at this moment; end it first")

    def _mend(self, restart: bool) -> None:
        """Write the job down, or continue to publish results. The caller holds the lock alone."""
        if restart or not self.is_seen():
            if not restart and self.is_published():
                self.discard()
                return
            self._forget()
            self._clear()
            self._check_target()
            for name in (_WORK, _FILES):
                os.mkdir(self.folder.file(name))
            self._write(is_publishing=False)
        elif self._state() == "publishing":
            self._place()

    # ---- whose work this is ----

    def _state(self) -> _State:
        """Whose work is in the folder. FileError if it holds files of others."""
        if not self.folder.exists():
            return "none"
        try:
            with open(self.folder.file(_JOB), encoding="utf-8") as file:
                job = json.load(file)
            if job["fingerprint"] != self.plan.fingerprint:
                return "other"
            return "publishing" if job["is_publishing"] else "begun"
        except FileNotFoundError:
            names = self.folder.listed()
            known = all(name in (_JOB, LOCK, _FILES, _WORK) or name.startswith(f".{_JOB}.") for name in names)
            # The lock is made first and removed last.
            if known and (not names or LOCK in names):
                return "none"
        except (ValueError, KeyError, TypeError):
            pass
        raise FileError(f"{self.folder.path}: is in the way, and nothing that gpucast left; remove it")

    def _write(self, is_publishing: bool) -> None:
        """Write the job, whole or not at all, so that it survives a power cut."""
        job = {**target.description(self.plan), "is_publishing": is_publishing}
        with replaced(self.folder.file(_JOB), 0o666) as file:
            file.write(json.dumps(job).encode())

    def _has_work(self) -> bool:
        """Whether there are files other than journals. Journals stay when all results have their places."""
        folders = (os.walk(self.folder.file(name)) for name in (_WORK, _FILES))
        return any(".jsonl" not in name for walked in folders for _, _, names in walked for name in names)

    def is_seen(self) -> bool:
        """Whether there is work on this plan, by this process or another one."""
        return self._state() in ("begun", "publishing")

    def is_own(self) -> bool:
        """Whether this process has begun or continued the work (or was about to), and no other process has replaced it
        since.
        """
        return self._is_begun and self._state() != "other"

    # ---- one file ----

    def is_done(self, file: FilePlan) -> bool:
        return all(status_of(self.finished(name)) is not None for name in file.names)

    def finished(self, name: str) -> str:
        """The path of a finished file."""
        return self.folder.file(f"{_FILES}/{name}")

    def journal(self, file: FilePlan) -> Journal:
        return Journal(self._path_of(file, "jsonl"))

    @contextlib.contextmanager
    def part(self, file: FilePlan) -> Iterator[BinaryIO]:
        """Open the unfinished file for reading and writing, as it was left. No other process can open it meanwhile."""
        path = self.parts(file)[-1]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags, 0o666)
        with closing(open(handle, "r+b", buffering=1 << 20)) as part:
            if not lock(part, wait=False):
                raise Busy(f"{self.plan.target}: another process is converting {file.path} at this moment")
            yield part

    def parts(self, file: FilePlan) -> list[str]:
        """The paths of the files in `file.names` until they are finished."""
        return [os.path.join(self._path_of(file, "part"), name.rpartition("/")[2]) for name in file.names]

    def finish(self, file: FilePlan) -> None:
        """Give the written parts their final names. They must be on the disk already."""
        # The permissions of the file that is replaced, or those that a plain ``open`` would give.
        mode = mode_of(self.target) if self.plan.single else new_mode()
        for path, name in zip(self.parts(file), file.names, strict=True):
            os.chmod(path, mode)
            os.replace(path, self.folder.made(f"{_FILES}/{name}"))
            sync_folder(os.path.dirname(self.finished(name)))

    def _path_of(self, file: FilePlan, ending: str) -> str:
        return self.folder.file(f"{_WORK}/{self.plan.files.index(file)}.{ending}")

    # ---- all ----

    def missing(self) -> list[FilePlan]:
        """The files that are not finished yet; none once the target is written."""
        missing = [file for file in self.plan.files if not self.is_done(file)]
        # Asked for last: another share may publish what is being counted.
        return [] if self.is_published() else missing

    def is_worth_keeping(self) -> bool:
        """Whether another run can continue the finished work, or results are being published."""
        if self._state() == "publishing":
            return True
        done = 0
        for file in self.plan.files:
            finished = [int(record.get("bytes_in", 0)) for record in self.journal(file).read()]
            done += file.bytes_in if self.is_done(file) else sum(finished)
        return done >= WORTH_KEEPING

    def written(self, file: FilePlan) -> str:
        """The path of one of the target's files."""
        return self.target if self.plan.single else os.path.join(self.target, *file.name.split("/"))

    def is_published(self) -> bool:
        """Whether the target is written: by this process, by another one, or by one that was killed immediately
        afterwards.
        """
        if self.is_whole:
            return True
        if not self.plan.single:
            return target.is_written(self.target, self.plan.fingerprint, self._names)
        return self._state() == "publishing" and all(
            status_of(self.finished(name)) is None and status_of(self._placed(name)) is not None for name in self._names
        )

    def concludes(self) -> bool:
        """Whether it is this process that publishes, reads the journals and discards them, now that all is finished.

        One of several shares does, and holds the lock alone; the others wait for it. FileError if the work is gone and
        the target is not written.
        """
        finished = status_of(self.finished(self._names[-1]))
        if not self.folder.is_alone:
            self.folder.take(alone=True, wait=True)
        if self.is_seen():
            if not self.folder.is_alone:
                raise self.busy()
            return True
        written = status_of(self.target)
        # Another share may have written a single target and removed its OUT.partial. A rename keeps the file.
        if not self.is_published() and not (finished and written and os.path.samestat(finished, written)):
            raise FileError(f"{self.folder.path}: was removed by another process before {self.plan.target} was written")
        self.discard_alone()
        return False

    def publish(self) -> None:
        """Move the finished work to the target, unless that is done. The caller holds the lock alone. FileError if a
        result is missing.
        """
        try:
            if not self.is_published():
                self._publish()
            self.is_whole = True
        except BaseException:
            # It may have been interrupted after the last rename.
            with contextlib.suppress(OSError, FileError):
                self.is_whole = self.is_published()
            raise

    def _publish(self) -> None:
        # Asked again, now that nobody else is at work: a process that verifies may have removed one.
        if missing := self.missing():
            raise FileError(f"{self.finished(missing[0].name)}: was finished, and is not there")
        if self.plan.single:
            self._check_places()
            self._write(is_publishing=True)
            self._place()
            return
        target.check_empty(self.plan, self.target)
        for name, text in (*self.plan.indexes, target.mark(self.plan)):
            with durable(self.folder.made(f"{_FILES}/{name}")) as file:
                file.write(text.encode())
            sync_folder(os.path.dirname(self.finished(name)))
        if os.name == "nt" and os.path.isdir(self.target):
            # Windows replaces no folder, not even an empty one.
            os.rmdir(self.target)
        os.replace(self.folder.file(_FILES), self.target)
        sync_folder(os.path.dirname(self.target))

    def _place(self) -> None:
        """Move the files of a single target that are not in their places yet, itself the last."""
        self._check_places()
        for name in self._names:
            if status_of(self.finished(name)) is not None:
                os.replace(self.finished(name), self._placed(name))
        sync_folder(os.path.dirname(self.target))

    def _check_places(self) -> None:
        for name in self._names:
            place = self._placed(name)
            if status_of(self.finished(name)) is None:
                if status_of(place) is None:
                    raise FileError(
                        f"{place}: was being written, and is neither there nor in {self.folder.path}; "
                        "give --restart to begin anew"
                    )
            elif status_of(place) is not None and not (name == self._names[-1] and self.plan.overwrite):
                raise FileError(f"{place}: exists, and would be replaced; remove it or choose another name")

    def _placed(self, name: str) -> str:
        """The place of a file of a single target, whose name may differ from its name in the plan."""
        return self.target if name == self._names[-1] else os.path.join(os.path.dirname(self.target), name)

    # ---- removing, for a process that has the lock alone ----

    def _forget(self) -> None:
        """Remove the job. From then on nothing in the folder counts."""
        remove([self.folder.file(_JOB)])
        sync_folder(self.folder.path)

    def _clear(self) -> None:
        """Remove all files but the lock. The job goes last, because it records published results."""
        for name in sorted(self.folder.listed(), key=_JOB.__eq__):
            if name in (_WORK, _FILES):
                shutil.rmtree(self.folder.file(name))
            elif name != LOCK:
                os.unlink(self.folder.file(name))

    def discard(self) -> None:
        """Remove the folder with all its files."""
        self._clear()
        self.folder.remove()

    def discard_alone(self) -> bool:
        """Remove the work that `is_own`, unless another process is at work here. Returns whether none of it is left."""
        try:
            if not (self.folder.is_alone or self.folder.take(alone=True)):
                return status_of(self.folder.path) is None
            if self.is_own():
                if not self.is_whole:
                    self._forget()
                self.discard()
            return True
        finally:
            self.folder.release()
