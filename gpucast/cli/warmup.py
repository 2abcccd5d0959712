# SPDX-License-Identifier: Apache-2.0
"""`gpucast warmup`: compiles kernels ahead of time."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.processes import processes
from gpucast.cli.progress import progress_bar
from gpucast.kernel import compiler
from gpucast.warmup.compile_ahead import compile_all, tasks
from gpucast.warmup.request import WarmupRequest

_DESCRIPTION = """\
Compile kernels into the cache (GPUCAST_CACHE_DIR), so that no cast waits for the compiler later. With --arch no GPU is
needed."""

_KERNELS = """\
--scale  only casts with scale=
--amax  only casts with amax=
--fused  also casts with scale=, with amax=, with both, and with stochastic rounding
--many  also gpucast.cast_many, for trees of arrays of one type
--mixed  gpucast.mixed: loss scales for FLOAT, FLOAT16 and BFLOAT16, and select_tree;
    without --pair and --types no casts
--grouped  also cast_grouped and quantize_grouped
--transposed  also casts of transposed arrays
--quantize FORMAT +  quantize and dequantize for formats such as mxfp8e4m3 nvfp4; without --pair and --types no casts
--row-scaled  of --quantize also formats with a global scale for each row
--hadamard N +  Hadamard transforms of these lengths, alone and before --quantize
"""
_WORK = f"""\
--jobs N = {os.cpu_count() or 1}  number of processes (default: one per CPU)
--no-progress  draw no progress bar
--quiet  print nothing but errors
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "warmup",
        help="compile kernels ahead of time",
        description=_DESCRIPTION,
    )
    kinds = {"SRC:DST": arguments.pair, "N": arguments.at_least_one}
    which = parser.add_mutually_exclusive_group()
    arguments.add_options(
        which, "--pair SRC:DST ...  compile casts from SRC to DST (may be repeated; default: all pairs)", kinds
    )
    which.add_argument(
        "--types", metavar="T", nargs="+", type=arguments.numeric, help="compile all casts between these types"
    )
    arguments.add_options(parser, "--arch ARCH +  architectures, such as sm_80 sm_90 (default: this machine's GPUs)")
    arguments.add_attributes(parser)
    arguments.add_options(parser, _KERNELS, {"N": int})
    arguments.add_options(parser, _WORK, kinds)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    start = time.monotonic()
    cache = compiler.compiler().cache
    if cache.limit == 0:
        raise ValueError("GPUCAST_CACHE_SIZE=0 keeps nothing on disk; unset it to compile ahead of time")
    pairs = args.pair or (itertools.product(args.types, repeat=2) if args.types else None)
    flags = {name: getattr(args, name) for name in WarmupRequest.__dataclass_fields__ if hasattr(args, name)}
    work = tasks(WarmupRequest(pairs, **flags, attributes=arguments.attributes_of(args)), args.arch or None)
    executor = processes(min(args.jobs, len(work)))
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
