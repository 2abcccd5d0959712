# SPDX-License-Identifier: Apache-2.0
"""Carrying out a plan: file by file, going on from what an earlier run has finished."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.outcome import Advance, Options, Outcome
from gpucast.checkpoints.running.staging import Busy, Staging
from gpucast.checkpoints.running.stream import Stream, results_of
from gpucast.checkpoints.streaming.prefetch import Prefetcher, threads
from gpucast.core.arithmetic import exact
from gpucast.files import FileError


@exact()
def run(plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance = lambda done: None) -> None:
    """Do the work, or this process's share of it, and fill `outcome`. The target appears whole, at the end, or not at
    all. FileError, OSError, ValueError (too much is lost; a result that is not the reference's), DeviceUnavailable."""
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
    """After an error: what little is unfinished goes, if nobody else works on it."""
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
    """Convert one file of a plan whose staging another process has begun; who began it publishes. Errors as `run`."""
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
            # The target is whole; the next run discards what is left.
            outcome.left = f"{staging.folder}: {error.strerror or error}"


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors of the system that name no file are of the one that is written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), path) from error
        raise
