# SPDX-License-Identifier: Apache-2.0
"""`gpucast warmup`: compiles kernels ahead of time."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.progress import progress_bar
from gpucast.compile import compiler
from gpucast.warmup.compile_ahead import WarmupRequest, compile_all, tasks

_DESCRIPTION = """\
Compile kernels into the cache (GPUCAST_CACHE_DIR), so that no cast waits for the compiler later. With --arch no GPU is
needed."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "warmup",
        help="compile kernels ahead of time",
        description=_DESCRIPTION,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pair",
        metavar="SRC:DST",
        action="append",
        type=arguments.pair,
        help="compile casts from SRC to DST (may be repeated; default: all pairs)",
    )
    which.add_argument(
        "--types", metavar="T", nargs="+", type=arguments.numeric, help="compile all casts between these types"
    )
    parser.add_argument(
        "--arch", nargs="+", action="extend", help="architectures, such as sm_80 sm_90 (default: this machine's GPUs)"
    )
    arguments.add_attributes(parser, stochastic=True)
    parser.add_argument("--scale", action="store_true", help="only casts with scale=")
    parser.add_argument("--amax", action="store_true", help="only casts with amax=")
    parser.add_argument(
        "--fused",
        action="store_true",
        help="also casts with scale=, with amax=, with both, and with stochastic rounding",
    )
    parser.add_argument("--many", action="store_true", help="also gpucast.cast_many, for trees of arrays of one type")
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="gpucast.mixed: loss scales for FLOAT, FLOAT16 and BFLOAT16, and select_tree; without --pair and --types "
        "no casts",
    )
    parser.add_argument("--grouped", action="store_true", help="also cast_grouped and quantize_grouped")
    parser.add_argument("--transposed", action="store_true", help="also casts of transposed arrays")
    parser.add_argument(
        "--quantize",
        metavar="FORMAT",
        nargs="+",
        action="extend",
        default=[],
        help="quantize and dequantize for formats such as mxfp8e4m3 nvfp4; without --pair and --types no casts",
    )
    parser.add_argument(
        "--row-scaled", action="store_true", help="of --quantize also formats with a global scale for each row"
    )
    parser.add_argument(
        "--hadamard",
        metavar="N",
        nargs="+",
        action="extend",
        type=int,
        default=[],
        help="Hadamard transforms of these lengths, alone and before --quantize",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=arguments.at_least_one,
        default=os.cpu_count() or 1,
        help="number of processes (default: one per CPU)",
    )
    parser.add_argument("--no-progress", action="store_true", help="draw no progress bar")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    start = time.monotonic()
    cache = compiler.compiler().cache
    if cache.limit == 0:
        raise ValueError("GPUCAST_CACHE_SIZE=0 keeps nothing on disk; unset it to compile ahead of time")
    pairs = args.pair or (itertools.product(args.types, repeat=2) if args.types else None)
    flags = {name: getattr(args, name) for name in WarmupRequest.__dataclass_fields__ if hasattr(args, name)}
    work = tasks(WarmupRequest(pairs, **flags, attributes=arguments.attributes_of(args)), args.arch)
    # Forked children would inherit the state of libraries that are not safe to fork.
    jobs = min(args.jobs, len(work))
    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    with executor, progress_bar(len(work), not (args.quiet or args.no_progress), "kernels") as advance:
        problem = compile_all(executor, work, advance)
    if problem:
        print(f"gpucast warmup: the kernels cannot be kept: {problem}", file=sys.stderr)
        return 1
    if not args.quiet:
        names = ", ".join(dict.fromkeys(task.arch for task in work))
        count, size = cache.usage()
        print(
            f"{len(work):,} kernels for {names} in {time.monotonic() - start:.1f} s; {cache.folder} holds {count:,} "
            f"entries, {size / 2**20:.1f} of {cache.limit / 2**20:.0f} MiB"
        )
    return 0


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
