# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan file by file and continues the work of an earlier run. It reads, casts and writes the tensors of a
file piece by piece, and enters each one in the journal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from gpucast import files
from gpucast.convert.losses import counts
from gpucast.convert.losses.statistics import Errors, Statistics
from gpucast.convert.planning.plan import ConversionPlan, FilePlan, Stamp
from gpucast.convert.planning.planner import Opened, opened
from gpucast.convert.planning.tensor_plan import TensorPlan, TensorPlanner
from gpucast.convert.running.cast_tensor import Casting
from gpucast.convert.running.outcome import Advance, Options, Outcome, Result
from gpucast.convert.running.verify import verify
from gpucast.convert.running.work import Busy, UnfinishedWork
from gpucast.convert.running.work_folder import remove
from gpucast.convert.streaming.checksums import ChecksumFile, ChecksumWriter
from gpucast.convert.streaming.prefetch import Prefetcher
from gpucast.core.arithmetic import exact
from gpucast.core.places import durable
from gpucast.files import FileError, Spec, Tensor


class Stream:
    """Converts the files of a plan, one at a time."""

    def __init__(
        self, work: UnfinishedWork, options: Options, outcome: Outcome, advance: Advance, prefetcher: Prefetcher
    ) -> None:
        self.work, self.options, self.outcome = work, options, outcome
        self._plan, self._advance, self._prefetcher = work.plan, advance, prefetcher

    def file(self, file: FilePlan) -> None:
        """Convert a file, unless that is done."""
        work = self.work
        # An earlier run may have been allowed more.
        for result in results_of(file, work):
            self.check_loss(file, result.plan, result.statistics)
        if not work.is_done(file):
            with work.part(file) as part:
                # Another process may have finished it in between.
                if not work.is_done(file):
                    self._write(file, part)
                    return
        self.resumed(file.bytes_in)
        # The run that finished it may not have been told to verify.
        self._verify(file, [work.finished(name) for name in file.names])

    def check_loss(self, file: FilePlan, tensor: TensorPlan, statistics: Statistics) -> None:
        """TooMuchLost if a cast tensor lost too much, unless that is allowed."""
        if tensor.dtype is None or self.options.allow_loss:
            return
        report = counts.unexpected(statistics.report) if len(tensor.names) > 1 else statistics.report
        counts.check(f"{file.origins[tensor.name]}: tensor {tensor.name!r}", tensor.kind, tensor.dtype.name, report)

    def begin(self, stage: str) -> None:
        """Name the present stage for the progress bar."""
        self.outcome.stage = stage
        self._advance(0)

    def resumed(self, nbytes: int) -> None:
        """Report the number of bytes that an earlier run has finished."""
        self.outcome.resumed += nbytes
        self._advance(nbytes)

    def _write(self, file: FilePlan, part: BinaryIO) -> None:
        stamps = {known.path: Stamp.of(known.path) for known in file.identity}
        _check_unchanged(file)
        self.begin("copying" if file.tensors is None else "casting")
        if file.tensors is None:
            self._copy(file, part)
        else:
            with opened(file, self._plan.request, self._plan.single) as source:
                self._convert(file, source, part, [known.changed for known in stamps.values()])
        part.flush()
        self.begin("writing to the disk")
        try:
            os.fsync(part.fileno())
        except OSError:
            # What did not come to the disk may still read as if it had.
            with contextlib.suppress(OSError):
                remove(self.work.parts(file))
            raise
        changed = next((path for path, known in stamps.items() if Stamp.of(path) != known), None)
        if changed is not None:
            raise FileError(f"{changed}: was changed while it was converted")
        self._verify(file, self.work.parts(file))
        self.work.finish(file)

    def _copy(self, file: FilePlan, part: BinaryIO) -> None:
        part.truncate(0)
        with open(file.path, "rb") as source:
            shutil.copyfileobj(source, part, 1 << 20)
        self._advance(file.bytes_in)

    def _verify(self, file: FilePlan, written: list[str]) -> None:
        """Verify the written files in `file.names`, if that was asked for. A wrong file is removed."""
        if self.options.verify is None or file.tensors is None:
            return
        try:
            self.outcome.verified += self.compared(file, written[-1])
        except FileError:
            with contextlib.suppress(OSError):
                remove(written)
            raise

    def compared(self, file: FilePlan, written: str) -> int:
        """The number of elements of a written file that were compared with the reference. FileError if one differs."""
        plan = self._plan
        self.begin("verifying")
        _check_unchanged(file)
        name = plan.target if plan.single else os.path.join(plan.target, file.name)
        everything = self.options.verify == "all"
        return verify(written, file, plan, everything, name, self._prefetcher, self._advance)

    # ---- the tensors of a file ----

    def _convert(self, file: FilePlan, source: Opened, part: BinaryIO, changed: list[int]) -> None:
        assert file.tensors is not None
        out = self._plan.target if self._plan.single else file.name
        planned = list(zip(source.tensors, file.tensors, source.planners, strict=True))
        specs = {tensor.name: planner.plan(tensor, out)[1] for tensor, _, planner in planned}
        every = [spec for tensor in file.tensors for spec in specs[tensor.name]]
        # A file whose tensors have fixed places is continued; others begin anew.
        resumable = out.lower().endswith(".safetensors")
        journal = self.work.journal(file)
        # What was made of another source is done anew.
        records = [record for record in journal.read() if resumable and record.get("changed") == changed]
        finished = {record.get("name"): record for record in records}
        target: Any = ChecksumFile(part) if resumable else part
        if not resumable:
            part.truncate(0)

        def external() -> BinaryIO:
            return stack.enter_context(durable(self.work.parts(file)[0]))

        with (
            contextlib.ExitStack() as stack,
            files.writing(target, out, every, file.metadata, source.model, external) as writer,
            journal.appending(records) as record,
        ):
            for tensor, plan, planner in planned:
                found = finished.get(tensor.name)
                recorder = ChecksumWriter(writer, target)
                if found is not None and recorder.holds(specs[tensor.name], found.get("sums")):
                    self.resumed(tensor.nbytes)
                    continue
                result = self._tensor(file, tensor, plan, specs[tensor.name], planner, recorder)
                # After a kill the system still has what was flushed; after a power cut the sums tell.
                part.flush()
                record(result | {"changed": changed})

    def _tensor(
        self,
        file: FilePlan,
        tensor: Tensor,
        plan: TensorPlan,
        specs: Sequence[Spec],
        planner: TensorPlanner,
        writer: ChecksumWriter,
    ) -> dict[str, Any]:
        """Write the result of a tensor, and return its record."""
        request = self._plan.request
        statistics = Statistics(errors=Errors.of(request.detail))
        scaled = None if plan.dtype is None else planner.scaled(tensor)

        def observe(size: int, lost: Statistics) -> None:
            statistics.join(lost)
            self._advance(tensor.nbytes * size // max(1, tensor.size))

        if plan.dtype is None:
            (spec,) = specs
            self._advance(writer.copy(spec) if spec.source is not None else writer.write(spec, tensor.chunks()))
            statistics.errors = None
        elif scaled is not None:
            scaled.write(writer.write, observe, self._prefetcher)
        else:
            casting = Casting(tensor, plan.dtype, request, self._prefetcher, self._plan.source)
            casting.write(writer, specs[0], observe)
        self.check_loss(file, plan, statistics)
        record = {"name": tensor.name, "bytes_in": tensor.nbytes, "bytes_out": writer.nbytes, "sums": writer.checksums}
        return record | statistics.as_record()


def results_of(file: FilePlan, work: UnfinishedWork) -> Iterator[Result]:
    """The results that the journal of a finished file records for its cast tensors."""
    records = {record.get("name"): record for record in work.journal(file).read()}
    for tensor in file.tensors or ():
        if tensor.dtype is not None and tensor.name in records:
            record = records[tensor.name]
            yield Result(file, tensor, record["bytes_out"], Statistics.from_record(record))


def _check_unchanged(file: FilePlan) -> None:
    changed = file.changed()
    if changed is not None:
        raise FileError(f"{changed}: was changed since it was first looked at")


@exact()
def run(
    plan: ConversionPlan,
    options: Options,
    outcome: Outcome,
    advance: Advance = lambda done: None,
    elsewhere: Callable[[], None] | None = None,
) -> None:
    """Carry out the plan, or this process's share of it, and fill `outcome`. The target appears whole at the end, or
    not at all. FileError, OSError, ValueError (too much is lost, or a result differs from the reference),
    DeviceUnavailable. `elsewhere` has other processes convert the files, with `run_file`.
    """
    work = UnfinishedWork(plan)
    with _naming(plan.target):
        if not options.files_of(plan) and (missing := len(work.missing())):
            # A share of nothing begins nothing, which nobody might end.
            outcome.waiting = missing
            return
        try:
            work.begin(options.restart, options.share is not None or elsewhere is not None)
            with Prefetcher(options.device) as prefetcher:
                _all(Stream(work, options, outcome, advance, prefetcher), elsewhere)
        except Busy:
            raise
        except BaseException:
            # What fails here as well does not hide the error that there was.
            with contextlib.suppress(OSError, FileError):
                _discard_or_keep(work, options, outcome)
            raise
        finally:
            work.folder.release()


def _discard_or_keep(work: UnfinishedWork, options: Options, outcome: Outcome) -> None:
    """Clean up after an error: remove work too small to keep, unless another process is at work."""
    if work.is_whole:
        outcome.left = f"{work.folder.path}: was not removed"
        if work.discard_alone():
            outcome.left = ""
    elif work.is_own():
        is_all = options.share is None or options.share.count == 1
        is_little = is_all and not work.is_worth_keeping()
        if not (is_little and work.discard_alone()) and work.is_seen():
            outcome.kept = work.folder.path


@exact()
def run_file(plan: ConversionPlan, file: FilePlan, options: Options, outcome: Outcome) -> None:
    """Convert one file of a plan. Another process has begun the work and publishes the result. Errors as `run`."""
    work = UnfinishedWork(plan)
    with _naming(plan.target), Prefetcher(options.device) as prefetcher:
        try:
            if work.join():
                Stream(work, options, outcome, lambda done: None, prefetcher).file(file)
            elif work.is_seen():
                raise work.busy()
            elif not work.is_published():
                why = "cannot be seen; all machines must see source and target under the same paths"
                raise FileError(f"{work.folder.path}: {why}")
        finally:
            work.folder.release()


def _all(stream: Stream, elsewhere: Callable[[], None] | None) -> None:
    work, options, outcome = stream.work, stream.options, stream.outcome
    plan, mine = work.plan, options.files_of(work.plan)
    if work.is_published():
        # By a run that was killed right then, or by another share.
        stream.resumed(sum(file.bytes_in for file in mine))
        for file in mine:
            if options.verify is not None and file.tensors is not None:
                outcome.verified += stream.compared(file, work.written(file))
    elif elsewhere is not None:
        elsewhere()
    else:
        for file in mine:
            stream.file(file)
    outcome.waiting = len(work.missing())
    if outcome.waiting:
        outcome.results = [result for file in mine for result in results_of(file, work)]
        return
    if options.share is not None and options.share.count > 1:
        stream.begin("waiting for other shares")
    if not work.concludes():
        return
    results = [result for file in plan.files for result in results_of(file, work)]
    if not work.is_published():
        for result in results:
            stream.check_loss(result.file, result.plan, result.statistics)
    stream.begin("publishing")
    work.publish()
    # None are known where an earlier run was stopped while it removed the journals.
    outcome.results = results if len(results) == len(plan.converted) else []
    try:
        work.discard()
    except OSError as error:
        # The target is whole; the next run discards the rest.
        outcome.left = f"{work.folder.path}: {error.strerror or error}"


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let system errors that name no file name the written file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), path) from error
        raise
