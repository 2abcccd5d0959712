# SPDX-License-Identifier: Apache-2.0
"""`gpucast bench`: measures how fast casts are on this machine's GPU, compared with CuPy and PyTorch."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpucast.benchmark import contenders, gpu, quick
from bench.timing.machine import HostMachine, Machine
from gpucast.cli import arguments
from gpucast.cli.progress import progress_bar
from gpucast.core.errors import DeviceUnavailable
from gpucast.core.version import __version__
from gpucast.gpu import devices as device

_DESCRIPTION = """\
Compare casts with the exact reference, then time them on the GPU, in turn with CuPy and PyTorch where they can be
imported: medians with 5th and 95th percentiles, beside two copies as ceilings. The exit code is 1 where a result
differs from the reference."""

#: Elements of an array on a GPU, and on the host.
_ELEMENTS, _ON_HOST = 1 << 26, 1 << 18
_SECONDS = 20.0


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure the speed of casts on the GPU",
        description=_DESCRIPTION,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help=f"take about {_SECONDS:.0f} seconds (the default)")
    length.add_argument(
        "--seconds", metavar="S", type=arguments.positive, default=_SECONDS, help="take about S seconds"
    )
    parser.add_argument(
        "--pair", metavar="SRC:DST", type=arguments.pair, action="append", help="measure this pair (may be repeated)"
    )
    parser.add_argument(
        "--elements",
        metavar="N",
        type=arguments.at_least_one,
        help=f"of an array (default: {_ELEMENTS:,}; host: {_ON_HOST:,})",
    )
    parser.add_argument(
        "--allow-cpu", action="store_true", help="without a GPU measure casts on the host; the result says device: none"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there, too")
    parser.add_argument("--no-progress", action="store_true", help="draw no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    machine = _machine(args.allow_cpu)
    available = contenders.contenders(machine)
    on_host = machine.device == "none"
    pairs = args.pair or quick.PAIRS
    if on_host:
        # Types below one byte are packed on a GPU but not on the host, so host figures for them would mislead.
        pairs = [pair for pair in pairs if not (pair[0].packed or pair[1].packed)]
        if not pairs:
            raise ValueError("on the host only pairs of types of whole bytes are measured")
    elements = args.elements or (_ON_HOST if on_host else _ELEMENTS)
    with arguments.created(args.json) as file:
        with progress_bar(len(pairs), not args.no_progress, "pairs") as advance:
            report = quick.run(machine, available, pairs, elements, args.seconds, advance)
        if file is not None:
            file.write(json.dumps({"gpucast": __version__, **report.as_json()}, indent=1).encode() + b"\n")
    print(quick.text(report))
    return 1 if report.wrong else 0


def _machine(allow_cpu: bool) -> Machine:
    """The GPU, or the host if there is no GPU and `allow_cpu` is given; else DeviceUnavailable."""
    problem = device.unavailable()
    if problem is None:
        return gpu.GpuMachine()
    if allow_cpu:
        return HostMachine()
    raise DeviceUnavailable(f"no GPU to measure: {problem[0]}; {problem[1]}, or measure the host: --allow-cpu")
