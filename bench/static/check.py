# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --static``: estimates the speed of each kind of call from its kernels' machine code. Needs no GPU.

`bench.static.calls` lists the calls, `bench.static.estimate` says how a share of a copy's speed is estimated. Then the
gate (`bench.static.gate`) looks at a sample of all kernels. The check fails where a kernel does not pass it.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import gpucast
from bench.report.static_tables import estimates
from bench.static import gate
from bench.static.calls import ELEMENTS, Family, cast_family, families, recorded
from bench.static.catalog import all_kernels
from bench.static.estimate import GPUS, Estimate, estimate, on_gpu
from bench.static.kernels import capability, codes, measured, per_element
from gpucast.kernel import compiler
from gpucast.parity.cases import NUMERIC

#: The compute capabilities that the check is for.
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
#: One kernel in so many is looked at by the gate.
SAMPLE = 4000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("--static")
    group.add_argument(
        "--arch", nargs="+", type=_architecture, default=[], help="such as sm_90 (default: for devices 8.0, 9.0, 10.0)"
    )
    group.add_argument("--only", default="", metavar="PATTERN", help="calls whose names match, such as mxfp8")
    group.add_argument("--sass", action="store_true", help="print the machine code that is counted")
    group.add_argument(
        "--gate", type=int, default=SAMPLE, metavar="N",
        help=f"look at one kernel in N of all (default: {SAMPLE}; 0: at none)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = [one for one in _families(arguments.src, arguments.dst) if re.search(arguments.only, one.name)]
    version = "NVRTC {}.{}".format(*compiler.compiler().version)
    print(f"{version}; estimates for {ELEMENTS:,} elements, nothing runs on a GPU")
    figures: dict[str, Any] = {"compiler": version, "elements": ELEMENTS, "architectures": {}, "failures": []}
    archs = arguments.arch or architectures()
    for arch in archs:
        found = list(estimated(chosen, arch))
        rows = [as_json(one) for one in found]
        figures["architectures"][arch] = rows
        print(f"\n{arch}, {GPUS[found[0].passes[0].of.capability].name}\n\n{estimates(rows)}")
        if arguments.sass:
            for one in found:
                print(f"\n{one.main.of.of.kernel.name}:", *one.main.of.path, sep="\n")
    if arguments.gate:
        kernels = all_kernels(arguments.gate)
        print(f"\n{len(kernels)} of all kernels, by the gate:")
        for arch in archs:
            gated = gate.gate(kernels, arch, os.cpu_count() or 1)
            print(f"{arch}: {gate.counts(gated)}")
            figures["failures"] += [problem for one in gated for problem in one.problems()]
    print(*figures["failures"], sep="\n")
    return figures


def architectures() -> list[str]:
    """The architectures that gpucast compiles for, for the devices of the check."""
    return [compiler.architecture(capability) for capability in CAPABILITIES]


def _architecture(text: str) -> str:
    try:
        name = compiler.compiler().parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if name.startswith("compute_"):
        raise argparse.ArgumentTypeError(f"{text} gives PTX, not machine code; expected one such as sm_90")
    if capability(name) not in GPUS:
        raise argparse.ArgumentTypeError(f"there is no GPU of {text} here, only of {', '.join(map(str, GPUS))}")
    return name


def _families(sources: Iterable[str], targets: Iterable[str]) -> Iterator[Family]:
    """All families, or casts of contiguous arrays between some types."""
    if not (sources or targets):
        yield from families()
        return
    for src in [gpucast.dtype(name) for name in sources] or NUMERIC:
        for dst in [gpucast.dtype(name) for name in targets] or NUMERIC:
            yield cast_family(src.name, dst.name)


def estimated(chosen: Iterable[Family], arch: str) -> Iterator[Estimate]:
    """The estimates of calls for an architecture such as "sm_90"."""
    calls = [recorded(family) for family in chosen]
    code = codes([one.kernel for call in calls for one in call.passes], arch)
    for call in calls:
        passes = [on_gpu(one, code[one.kernel].facts, arch) for one in call.passes]
        yield estimate(call, [measured(one, arch, code[one.kernel]) for one in passes])


def as_json(of: Estimate) -> dict[str, Any]:
    """The figures of a call. Those of a kernel are of the pass that takes longest; bytes and instructions are those of
    the whole call for an element."""
    main, passes = of.main.of, [one.of for one in of.passes]
    return {
        "call": of.call.name,
        "kernel": main.of.kernel.name,
        "registers": main.facts.registers,
        "shared": main.facts.shared,
        "local": max(one.facts.local for one in passes),
        "threads": of.main.threads,
        "in_flight": of.main.in_flight,
        "wanted": GPUS[main.capability].in_flight,
        "instructions": round(per_element(passes, of.call.elements), 3),
        "exact": all(one.exact for one in passes),
        # Of a tile, where they are in the loop over these; else of a block.
        "barriers": sum(one.base == "BAR" for one in main.repeated) or main.barriers,
        "launches": len(passes),
        "read": round(of.call.read / of.call.elements, 4),
        "written": round(of.call.written / of.call.elements, 4),
        "share": round(of.share, 4),
        "bound": of.main.bound,
    }
