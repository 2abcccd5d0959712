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
from gpucast.casting.loss_counts import CastReport
from gpucast.checkpoints.losses import counts
from gpucast.checkpoints.losses.statistics import Errors, Statistics
from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan, Stamp
from gpucast.checkpoints.planning.planner import Opened, opened
from gpucast.checkpoints.planning.tensor_plan import TensorPlan, TensorPlanner
from gpucast.checkpoints.running.cast_tensor import Casting
from gpucast.checkpoints.running.outcome import Advance, Options, Outcome, Result
from gpucast.checkpoints.running.staging import Busy, Staging
from gpucast.checkpoints.running.verify import verify
from gpucast.checkpoints.scales import scaling
from gpucast.checkpoints.streaming.checksums import ChecksumFile, ChecksumWriter
from gpucast.checkpoints.streaming.prefetch import Prefetcher, threads
from gpucast.core.arithmetic import exact
from gpucast.core.places import durable
from gpucast.files import FileError, Spec, Tensor
from gpucast.files.tensor import Array


class Stream:
    """Converts the files of a plan, one at a time."""

    def __init__(
        self,
        plan: ConversionPlan,
        options: Options,
        staging: Staging,
        outcome: Outcome,
        advance: Advance,
        prefetcher: Prefetcher,
    ) -> None:
        self._plan, self._options, self._staging = plan, options, staging
        self._outcome, self._advance, self._prefetcher = outcome, advance, prefetcher

    def file(self, file: FilePlan) -> None:
        """Convert a file, unless that is done."""
        staging = self._staging
        # An earlier run may have been allowed more.
        for result in results_of(file, staging):
            self.check_loss(file, result.plan, result.statistics)
        if not staging.is_done(file):
            with staging.part(file) as part:
                # Another process may have finished it in between.
                if not staging.is_done(file):
                    self._write(file, part)
                    return
        self.resumed(file.bytes_in)
        # The run that finished it may not have been told to verify.
        self._verify(file, [staging.finished(name) for name in file.names], staging.remove_finished)

    def check_loss(self, file: FilePlan, tensor: TensorPlan, statistics: Statistics) -> None:
        """TooMuchLost if a cast tensor lost too much, unless that is allowed."""
        if tensor.dtype is None or self._options.allow_loss:
            return
        scaled = len(tensor.names) > 1
        report = scaling.unexpected(statistics.report) if scaled else statistics.report
        counts.check(f"{file.origins[tensor.name]}: tensor {tensor.name!r}", tensor.kind, tensor.dtype.name, report)

    def begin(self, stage: str) -> None:
        """Name the present stage for the progress bar."""
        self._outcome.stage = stage
        self._advance(0)

    def resumed(self, nbytes: int) -> None:
        """Report the number of bytes that an earlier run has finished."""
        self._outcome.resumed += nbytes
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
            self._staging.remove_parts(file)
            raise
        changed = next((path for path, known in stamps.items() if Stamp.of(path) != known), None)
        if changed is not None:
            raise FileError(f"{changed}: was changed while it was converted")
        self._verify(file, self._staging.parts(file), self._staging.remove_parts)
        self._staging.finish(file)

    def _copy(self, file: FilePlan, part: BinaryIO) -> None:
        part.truncate(0)
        with open(file.path, "rb") as source:
            shutil.copyfileobj(source, part, 1 << 20)
        self._advance(file.bytes_in)

    def _verify(self, file: FilePlan, written: Sequence[str], remove: Callable[[FilePlan], None]) -> None:
        """Verify the written files in `file.names`, if verification was asked for and is not done. A wrong file is
        removed.
        """
        if self._options.verify is None or file.tensors is None:
            return
        everything = self._options.verify == "all"
        journal = self._staging.journal(file)
        records = journal.read()
        done = [
            record["verified"] for record in records if "verified" in record and record["verified_all"] >= everything
        ]
        if not done:
            try:
                done = [self.compared(file, written[-1])]
            except FileError:
                remove(file)
                raise
            with journal.appending(records) as record:
                record({"verified": done[0], "verified_all": everything})
        self._outcome.verified += done[-1]

    def compared(self, file: FilePlan, written: str) -> int:
        """The number of elements of a written file that were compared with the reference. FileError if one differs."""
        plan = self._plan
        self.begin("verifying")
        _check_unchanged(file)
        name = plan.target if plan.single else os.path.join(plan.target, file.name)
        return verify(written, file, plan, self._options.verify == "all", name)

    # ---- the tensors of a file ----

    def _convert(self, file: FilePlan, source: Opened, part: BinaryIO, changed: list[int]) -> None:
        assert file.tensors is not None
        out = self._plan.target if self._plan.single else file.name
        planned = list(zip(source.tensors, file.tensors, source.planners, strict=True))
        specs = {tensor.name: planner.plan(tensor, out)[1] for tensor, _, planner in planned}
        every = [spec for tensor in file.tensors for spec in specs[tensor.name]]
        # A file whose tensors have fixed places is continued; others begin anew.
        resumable = out.lower().endswith(".safetensors")
        journal = self._staging.journal(file)
        # What was verified was the file as it was then. What was made of another source is done anew.
        known = journal.read() if resumable else []
        records = [record for record in known if "name" in record and record.get("changed") == changed]
        finished = {record.get("name"): record for record in records}
        target: Any = ChecksumFile(part) if resumable else part
        if not resumable:
            part.truncate(0)

        def external() -> BinaryIO:
            return stack.enter_context(durable(self._staging.parts(file)[0]))

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
        statistics = Statistics(errors=Errors() if request.detail == "all" else None)
        scaled = None if plan.dtype is None else planner.scaled(tensor)
        if plan.dtype is None:
            (spec,) = specs
            self._advance(writer.copy(spec) if spec.source is not None else writer.write(spec, tensor.chunks()))
            statistics.errors = None
        elif scaled is not None:

            def observe(report: CastReport, examined: list[tuple[Array, Array, float]]) -> None:
                statistics.report += report
                for before, after, largest in examined:
                    statistics.examine(before, after, largest)
                self._advance(tensor.nbytes * report.elements // max(1, tensor.size))

            detailed = request.detail != "counts"
            scaled.write(writer.write, observe, self._prefetcher, self._options.device, detailed)
        else:

            def observe_part(size: int, lost: Statistics) -> None:
                statistics.join(lost)
                self._advance(tensor.nbytes * size // max(1, tensor.size))

            casting = Casting(tensor, plan.dtype, request, self._options.device, self._plan.source)
            casting.write(writer, specs[0], self._prefetcher, observe_part)
        self.check_loss(file, plan, statistics)
        record = {"name": tensor.name, "bytes_in": tensor.nbytes, "bytes_out": writer.nbytes, "sums": writer.checksums}
        return record | statistics.as_record()


def results_of(file: FilePlan, staging: Staging) -> Iterator[Result]:
    """The results that the journal of a finished file records for its cast tensors."""
    records = {record.get("name"): record for record in staging.journal(file).read()}
    for tensor in file.tensors or ():
        if tensor.dtype is not None and tensor.name in records:
            record = records[tensor.name]
            yield Result(file, tensor, record["bytes_out"], Statistics.from_record(record))


def _check_unchanged(file: FilePlan) -> None:
    changed = file.changed()
    if changed is not None:
        raise FileError(f"{changed}: was changed since it was first looked at")


@exact()
def run(plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance = lambda done: None) -> None:
    """Carry out the plan, or this process's share of it, and fill `outcome`. The target appears whole at the end, or
    not at all. FileError, OSError, ValueError (too much is lost, or a result differs from the reference),
    DeviceUnavailable.
    """
    staging = Staging(plan)
    with _naming(plan.target):
        if not options.files_of(plan) and (missing := len(staging.missing())):
            # A share of nothing begins nothing, which nobody might end.
            outcome.waiting = missing
            return
        try:
            staging.begin(options.restart, options.share is not None)
            with Prefetcher(threads(options.device)) as prefetcher:
                _all(Stream(plan, options, staging, outcome, advance, prefetcher), plan, options, staging, outcome)
        except Busy:
            raise
        except BaseException:
            # What fails here as well does not hide the error that there was.
            with contextlib.suppress(OSError, FileError):
                _discard_or_keep(staging, options, outcome)
            raise
        finally:
            staging.partial.release()


def _discard_or_keep(staging: Staging, options: Options, outcome: Outcome) -> None:
    """Clean up after an error: remove work too small to keep, unless another process is at work."""
    if staging.is_whole:
        outcome.left = f"{staging.folder}: was not removed"
        if staging.discard_alone():
            outcome.left = ""
    elif staging.is_own():
        is_all = options.share is None or options.share.count == 1
        is_little = is_all and not staging.is_worth_keeping()
        if not (is_little and staging.discard_alone()):
            outcome.kept = staging.folder


@exact()
def run_file(
    plan: ConversionPlan, file: FilePlan, options: Options, outcome: Outcome, advance: Advance = lambda done: None
) -> None:
    """Convert one file of a plan. Another process has begun the staging and publishes the result. Errors as `run`."""
    with _naming(plan.target), Prefetcher(threads(options.device)) as prefetcher:
        Stream(plan, options, Staging(plan), outcome, advance, prefetcher).file(file)


def _all(stream: Stream, plan: ConversionPlan, options: Options, staging: Staging, outcome: Outcome) -> None:
    mine = options.files_of(plan)
    if staging.is_published():
        # By a run that was killed right then, or by who shared the work.
        stream.resumed(sum(file.bytes_in for file in mine))
        for file in mine:
            if options.verify is not None and file.tensors is not None:
                outcome.verified += stream.compared(file, staging.target.file(file))
    else:
        for file in mine:
            stream.file(file)
        outcome.waiting = len(staging.missing())
    if outcome.waiting:
        outcome.results = [result for file in mine for result in results_of(file, staging)]
        return
    with staging.concluding() as is_ours:
        if not is_ours:
            return
        results = [result for file in plan.files for result in results_of(file, staging)]
        if not staging.is_published():
            for result in results:
                stream.check_loss(result.file, result.plan, result.statistics)
        stream.begin("publishing")
        staging.publish()
        # None are known where an earlier run was stopped while it removed the journals.
        outcome.results = results if len(results) == len(plan.converted) else []
        try:
            staging.partial.discard()
        except OSError as error:
            # The target is whole; the next run discards the rest.
            outcome.left = f"{staging.folder}: {error.strerror or error}"


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let system errors that name no file name the written file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), path) from error
        raise
