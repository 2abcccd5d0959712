# SPDX-License-Identifier: Apache-2.0
"""Converts the files of a plan as the tasks of a Dask cluster.

This process makes the plan, begins the work and ends it, as any run. Workers convert its files, one at a time. All
machines see the source and the target under the same paths. When a worker dies, another one continues its task from the
files on disk: the system releases the lock of a dead process, and a worker that only seems dead is waited for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pydoc
import time
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.convert.running.outcome import Advance, Options, Outcome
from gpucast.convert.running.stream import run, run_file
from gpucast.convert.running.work import Busy, UnfinishedWork
from gpucast.core.errors import DeviceUnavailable, PrintableError
from gpucast.core.version import __version__

#: Seconds to reach the scheduler, to wait for a first worker or for any worker, for a lock that another process has,
#: and for what others have written to be seen here.
_REACH, _WORKERS, _LOCK, _SEEN = 10, 60, 300, 60
#: Seconds between looks at the cluster while no task ends.
_LOOK = 5

_LOST = "the connection to the scheduler is lost"


class ClusterError(PrintableError, RuntimeError):
    """The cluster cannot do the work."""


class _Job(NamedTuple):
    plan: ConversionPlan
    options: Options


def run_on(
    address: str, plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance = lambda done: None
) -> None:
    """Carry out a plan with absolute paths on the cluster of the scheduler at `address`.

    Errors as `gpucast.convert.running.stream.run`, and ClusterError if the cluster cannot be reached, has no
    workers, or loses them.
    """
    if not (os.path.isabs(plan.source) and os.path.isabs(plan.target)):
        raise ValueError(f"run_on: {plan.source!r} and {plan.target!r} must be absolute paths")
    with _connected(address) as client:
        _check_versions(client)

        def convert() -> None:
            _convert(client, plan, dataclasses.replace(options, restart=False), outcome, advance)
            _wait_until_seen(plan)

        run(plan, options, outcome, advance, convert)


# ---- the cluster ----


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    try:
        import distributed
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise ClusterError(f"--scheduler needs dask.distributed ({error}): pip install 'gpucast[dask]'") from None
    try:
        client = distributed.Client(address, timeout=_REACH, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"--scheduler {address}: cannot be reached: {error}") from None
    with client, client.as_current():
        try:
            client.wait_for_workers(1, timeout=_WORKERS)
        except TimeoutError:
            raise ClusterError(f"--scheduler {address}: has no workers") from None
        try:
            yield client
        except CommClosedError as error:
            raise ClusterError(f"--scheduler {address}: {_LOST} ({error})") from None


def _check_versions(client: Any) -> None:
    # A function of the standard library: a worker without gpucast could not receive another one.
    versions = client.run(pydoc.locate, "gpucast.__version__", on_error="return")
    wrong = []
    for worker, version in versions.items():
        if version != __version__:
            has = "no gpucast that works" if version is None or isinstance(version, Exception) else f"gpucast {version}"
            wrong.append(f"worker {worker} has {has}")
    if wrong:
        more = f" ({len(wrong)} workers in all)" if len(wrong) > 1 else ""
        raise ClusterError(f"{wrong[0]}{more}; this is gpucast {__version__}")


def _convert(client: Any, plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance) -> None:
    # A task of its own: it is sent once to each worker, and made again where the worker that has it dies.
    job = client.submit(_Job, plan, options, pure=False)
    order = sorted(range(len(plan.files)), key=lambda index: plan.files[index].bytes_in, reverse=True)
    tasks = {
        client.submit(_task, job, index, key=f"convert-{index}-{uuid.uuid4().hex}", priority=-place): plan.files[index]
        for place, index in enumerate(order)
    }
    unfinished = set(tasks)
    try:
        for future in _completed(client, unfinished):
            file = tasks[future]
            resumed, verified = _result(future, file)
            outcome.resumed += resumed
            outcome.verified += verified
            advance(file.bytes_in * (1 + options.verifies(file)))
    finally:
        if unfinished:
            with contextlib.suppress(Exception):
                client.cancel(list(unfinished))


def _completed(client: Any, unfinished: set[Any]) -> Iterator[Any]:
    """The tasks as they end, with success or not; each leaves the set. ClusterError when no task can end any more."""
    import distributed

    workers_seen = time.monotonic()
    while unfinished:
        try:
            ended = distributed.wait(unfinished, timeout=_LOOK, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            ended = set()
        except distributed.CancelledError:
            raise ClusterError(_LOST) from None
        for future in ended:
            unfinished.discard(future)
            yield future
        if client.status != "running":
            raise ClusterError(_LOST)
        if ended or client.scheduler_info()["workers"]:
            workers_seen = time.monotonic()
        elif time.monotonic() > workers_seen + _WORKERS:
            raise ClusterError("all workers are gone")


def _result(future: Any, file: FilePlan) -> tuple[int, int]:
    import distributed

    try:
        done: tuple[int, int] = future.result()
    except distributed.KilledWorker:
        raise ClusterError(
            f"{file.path}: was given up after several workers died of it; had they enough memory?"
        ) from None
    except distributed.CancelledError:
        raise ClusterError(_LOST) from None
    return done


def _wait_until_seen(plan: ConversionPlan) -> None:
    """Wait until this process sees the workers' finished files: network file systems have a delay."""
    work, deadline = UnfinishedWork(plan), time.monotonic() + _SEEN
    while missing := work.missing():
        if time.monotonic() > deadline:
            raise ClusterError(f"{work.finished(missing[0].name)}: a worker has written it, and it is not seen here")
        time.sleep(1)


# ---- on a worker ----


def _task(job: _Job, index: int) -> tuple[int, int]:
    """Convert one file. Returns the bytes that an earlier run had finished, and the elements that were verified."""
    import distributed

    outcome, deadline = Outcome(job.plan), time.monotonic() + _LOCK
    while True:
        try:
            run_file(job.plan, job.plan.files[index], job.options, outcome)
        except Busy:  # noqa: PERF203
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        except DeviceUnavailable as error:
            raise DeviceUnavailable(f"worker {distributed.get_worker().address}: {error}") from None
        except OSError as error:
            where = distributed.get_worker().address
            raise OSError(error.errno, f"{error.strerror or error} (worker {where})", error.filename) from None
        else:
            return outcome.resumed, outcome.verified
