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
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpucast.checkpoints.planning.plan import ConversionPlan, FilePlan
from gpucast.checkpoints.running.outcome import Advance, Options, Outcome
from gpucast.checkpoints.running.stream import run, run_file
from gpucast.checkpoints.running.work import Busy, Work
from gpucast.core.errors import DeviceUnavailable, PrintableError
from gpucast.core.version import __version__
from gpucast.files import FileError

#: Seconds to reach the scheduler, to wait for a first worker or for any worker, for a lock that another process has,
#: and for what others have written to be seen here.
_REACH, _WORKERS, _LOCK, _SEEN = 10, 60, 300, 60
#: Seconds between looks at the cluster while no task ends.
_LOOK = 5
#: How often a task is tried again after an error of the system; deaths of workers count apart.
_RETRIES = 2

_LOST = "the connection to the scheduler is lost"


class ClusterError(PrintableError, RuntimeError):
    """The cluster cannot do the work."""


class _Job(NamedTuple):
    plan: ConversionPlan
    options: Options


class _Done(NamedTuple):
    """The report of a task. `error` is an error that another try would not fix."""

    resumed: int = 0
    verified: int = 0
    error: Exception | None = None


def run_on(
    address: str, plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance = lambda done: None
) -> None:
    """Carry out a plan with absolute paths on the cluster of the scheduler at `address`.

    Errors as `gpucast.checkpoints.running.stream.run`, and ClusterError if the cluster cannot be reached, has no
    workers, or loses them.
    """
    if not (os.path.isabs(plan.source) and os.path.isabs(plan.target)):
        raise ValueError(f"run_on: {plan.source!r} and {plan.target!r} must be absolute paths")
    with _connected(address) as client:
        _check_versions(client)

        def convert() -> None:
            _check_sight(client, plan)
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
            wrong.append(f"{worker} has {has}")
    _refuse(wrong, f"this is gpucast {__version__}")


def _check_sight(client: Any, plan: ConversionPlan) -> None:
    problems = client.run(_problem, plan, plan.files, on_error="return")
    wrong = [f"{worker} {problem}" for worker, problem in problems.items() if problem is not None]
    _refuse(wrong, "source and target must have the same paths on all machines")


def _refuse(wrong: list[str], rule: str) -> None:
    if wrong:
        more = f" ({len(wrong)} workers in all)" if len(wrong) > 1 else ""
        raise ClusterError(f"worker {wrong[0]}{more}; {rule}")


def _convert(client: Any, plan: ConversionPlan, options: Options, outcome: Outcome, advance: Advance) -> None:
    # A task of its own: it is sent once to each worker, and made again where the worker that has it dies.
    job = client.submit(_Job, plan, options, pure=False)
    order = sorted(range(len(plan.files)), key=lambda index: plan.files[index].bytes_in, reverse=True)
    tasks = {
        client.submit(
            _task, job, index, key=f"convert-{index}-{uuid.uuid4().hex}", retries=_RETRIES, priority=-place
        ): plan.files[index]
        for place, index in enumerate(order)
    }
    unfinished = set(tasks)
    try:
        for future in _completed(client, unfinished):
            file = tasks[future]
            done = _result(future, file)
            if done.error is not None:
                raise done.error
            outcome.resumed += done.resumed
            outcome.verified += done.verified
            advance(file.bytes_in)
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


def _result(future: Any, file: FilePlan) -> _Done:
    import distributed

    try:
        done: _Done = future.result()
    except distributed.KilledWorker:
        raise ClusterError(
            f"{file.path}: was given up after several workers died of it; had they enough memory?"
        ) from None
    except distributed.CancelledError:
        raise ClusterError(_LOST) from None
    return done


def _wait_until_seen(plan: ConversionPlan) -> None:
    """Wait until this process sees the workers' finished files: network file systems have a delay."""
    work, deadline = Work(plan), time.monotonic() + _SEEN
    while missing := work.missing():
        if time.monotonic() > deadline:
            raise ClusterError(f"{work.finished(missing[0].name)}: a worker has written it, and it is not seen here")
        time.sleep(1)


# ---- on a worker ----


def _task(job: _Job, index: int) -> _Done:
    """Convert one file. An OSError is raised, so that the task is tried again; other errors are returned."""
    plan, options = job
    file = plan.files[index]
    problem = _problem(plan, [file])
    if problem is not None:
        return _Done(error=ClusterError(f"worker {_address()} {problem}"))
    outcome = Outcome(plan)
    deadline = time.monotonic() + _LOCK
    while True:
        try:
            run_file(plan, file, options, outcome)
        except Busy as error:  # noqa: PERF203
            if time.monotonic() > deadline:
                return _Done(error=error)
            time.sleep(1)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror or error} (worker {_address()})", error.filename) from None
        except DeviceUnavailable as error:
            return _Done(error=DeviceUnavailable(f"worker {_address()}: {error}"))
        except Exception as error:
            return _Done(error=error)
        else:
            return _Done(outcome.resumed, outcome.verified)


def _problem(plan: ConversionPlan, files: Iterable[FilePlan]) -> str | None:
    """The reason why a worker cannot convert these files, or None."""
    for file in files:
        try:
            changed = file.changed(quick=True)
        except OSError as error:
            return f"cannot see {error.filename or file.path} ({error.strerror})"
        if changed is not None:
            return f"sees another {changed}, of another size or time"
    work = Work(plan)
    try:
        if not work.is_seen():
            return f"cannot see {work.folder}, where the work was begun"
    except (OSError, FileError) as error:
        return f"cannot read {work.folder} ({error})"
    return None if os.access(work.folder, os.W_OK) else f"may not write in {work.folder}"


def _address() -> str:
    import distributed

    return str(distributed.get_worker().address)
