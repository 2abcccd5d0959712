# SPDX-License-Identifier: Apache-2.0
"""Compile what parts of a run on a GPU need, in a process for each core: ``python -m bench.gpu_compile PART ...``.

NVRTC lets only a few threads work at a time, so parts that compile for themselves leave most cores idle. What is not
finished in time is left to the parts. CuPy's kernels are compiled here too, for the parts that measure it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bench import gpu_kernels
from bench.gpu_lines import Lines
from gpucast.benchmark.contenders import CUPY_TYPES
from gpucast.cli.arguments import positive
from gpucast.compile import cubin, nvidia
from gpucast.parity.cases import NUMERIC

#: Jobs per process that are queued ahead in the pool.
_AHEAD = 2


class Job(NamedTuple):
    """`run(*arguments)` in a process of the pool; returns why there is no kernel, or ""."""

    name: str
    run: Callable[..., str]
    arguments: tuple[str, ...]


def compile_kernel(name: str, text: str, arch: str) -> str:
    cubin.compile(text, name, arch)
    return cubin.compiler().cache.problem


def compile_cupy(src: str, dst: str) -> str:
    """The kernels of CuPy's rivals for a pair, into CuPy's own cache."""
    try:
        import cupy

        x, out = cupy.zeros(8, src), cupy.zeros(8, dst)
        x.astype(dst)
        cupy.copyto(out, x, casting="unsafe")
        cupy.ElementwiseKernel("T x", "U y", "y = static_cast<U>(x)", "elementwise_cast")(x, out)
    except Exception as error:  # A rival may raise anything, and is then left out where it is measured.
        return f"{type(error).__name__}: {error}"
    return ""


def jobs(parts: Sequence[str], arch: str) -> Iterator[Job]:
    """The most important first: our kernels, then CuPy's."""
    for kernel in gpu_kernels.needed(parts):
        yield Job(kernel.name, compile_kernel, (kernel.name, kernel.text, arch))
    if set(parts) & set(gpu_kernels.WITH_CUPY):
        types = [row.numpy_name for row in NUMERIC if row.numpy_name in CUPY_TYPES]
        for src, dst in itertools.product(types, types):
            yield Job(f"CuPy {src} to {dst}", compile_cupy, (src, dst))


def compile_all(work: Iterator[Job], processes: int, seconds: float, lines: Lines) -> tuple[int, int]:
    """Run the jobs for so many seconds; returns how many are done, and how many failed."""
    end = time.monotonic() + seconds
    # A separate thread generates the texts, so that the list of all is known soon, however far the pool is.
    texts: queue.Queue[Job | BaseException | None] = queue.Queue()
    names: list[str] = []
    threading.Thread(target=_make, args=(work, texts, names, end), daemon=True).start()
    # Forked children would inherit the state of libraries that do not expect it.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    waiting: dict[Future[str], Job] = {}
    done = failed = 0
    more = True
    try:
        while (more or waiting) and time.monotonic() < end:
            while more and len(waiting) < (1 + _AHEAD) * processes:
                job = texts.get()
                if isinstance(job, BaseException):
                    raise job
                if job is None:
                    more = False
                    break
                waiting[pool.submit(job.run, *job.arguments)] = job
            finished, _ = wait(waiting, timeout=max(0.0, end - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in finished:
                job = waiting.pop(future)
                problem = _problem(future)
                lines.done(job.name, problem)
                done, failed = done + 1, failed + bool(problem)
        return done, failed
    finally:
        # All names so far, including those of jobs that were not reached.
        lines.plan(names)
        pool.shutdown(wait=False, cancel_futures=True)


def _make(work: Iterator[Job], texts: queue.Queue[Job | BaseException | None], names: list[str], end: float) -> None:
    try:
        for job in work:
            names.append(job.name)
            texts.put(job)
            if time.monotonic() >= end:
                break
        texts.put(None)
    except BaseException as error:
        texts.put(error)


def _problem(future: Future[str]) -> str:
    error = future.exception()
    return future.result() if error is None else f"{type(error).__name__}: {error}"


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_compile", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=tuple(gpu_kernels.OF_PARTS), metavar="PART")
    parser.add_argument("--arch", help="such as sm_90 (default: that of this machine's first GPU)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--seconds", type=positive, default=600.0, metavar="S", help="stop after S seconds")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="where each kernel gets its line")
    arguments = parser.parse_args(argv)
    begin = time.monotonic()
    arch = arguments.arch or _architecture()
    done, failed = compile_all(
        jobs(arguments.parts, arch), arguments.jobs, arguments.seconds, Lines(arguments.lines)
    )  # fmt: skip
    count, size = cubin.compiler().cache.usage()
    print(
        f"{done:,} kernels for {arch} in {time.monotonic() - begin:.1f} s by {arguments.jobs} processes, {failed:,} "
        f"failed; the cache holds {count:,} entries, {size / 2**20:.0f} MiB"
    )
    return int(failed > 0)


def _architecture() -> str:
    found = nvidia.find()
    if found is None or not found.capabilities:
        raise SystemExit("gpu_compile: there is no GPU; name an architecture: --arch sm_90")
    return cubin.architecture(found.capabilities[0])


if __name__ == "__main__":
    sys.exit(main())
