# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --static``: estimates the speed of every kernel from its machine code. Needs no GPU.

For each pair of types and architecture it compiles the kernel of contiguous arrays with the default rule, and counts
what a thread executes for a full aligned tile (`bench.static.paths` says how the way is found): all instructions from
the entry to the exit, index arithmetic, tables and barriers included, over the elements that the thread casts. A model
(`bench.static.model`) says how busy each unit of the machine is while memory works at the speed of a copy, and what
limits the kernel at which share of a copy. The check fails where a unit is too full (`bench.static.budget`) or a layout
misses its goal. All shares are estimates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpucast
from bench.report.heatmap import heatmap
from bench.revision import commit
from bench.static import layouts as static_layouts
from bench.static import quantize as static_quantize
from bench.static.budget import FULL, KNOWN, Checked, fullest, of_casts, verdict
from bench.static.kernels import StaticKernel, measure
from bench.static.model import GPUS, estimate
from gpucast.cli.progress import progress_bar
from gpucast.core.rule import CastRule, resolve
from gpucast.kernel import compiler
from gpucast.parity.cases import NUMERIC, rules

#: The compute capabilities that the check is for.
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
#: Kernels that are listed, the worst ones of more; failures that are printed.
_SHOWN, _LINES = 30, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("--static")
    group.add_argument(
        "--arch", nargs="+", type=_architecture, default=[], help="such as sm_90 (default: for devices 8.0, 9.0, 10.0)"
    )
    group.add_argument(
        "--shape",
        choices=("contiguous", "strided", "many"),
        default="contiguous",
        help="many: contiguous arrays, many in one launch (default: contiguous)",
    )
    group.add_argument("--all-rules", action="store_true", help="every rule of each pair, not only the default one")
    group.add_argument("--sass", action="store_true", help="print the machine code that is counted")
    group.add_argument("--pictures", type=Path, metavar="FOLDER", help="write a heat map for each architecture there")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    chosen = list(_rules(arguments.src, arguments.dst, arguments.all_rules))
    # Kernels of other kinds are no pairs.
    everything = arguments.shape == "contiguous" and not (arguments.src or arguments.dst or arguments.all_rules)
    version = "NVRTC {}.{}".format(*compiler.compiler().version)
    print(version)
    figures: dict[str, Any] = {"compiler": version, "shape": arguments.shape, "architectures": {}, "failures": []}
    for arch in arguments.arch or architectures():
        with progress_bar(len(chosen), wanted=True, unit=" kernels") as advance:
            kernels = measure(chosen, arch, arguments.shape, advance)
        casts = of_casts(kernels)
        _print(arch, casts, arguments.sass)
        figures["architectures"][arch] = [as_json(kernel) for kernel in kernels]
        figures["failures"] += verdict(casts)
        if everything:
            quantizing = static_quantize.measure(arch)
            others = [*quantizing, *static_layouts.measure(arch)]
            figures["failures"] += [*verdict(others), *static_quantize.verdict_of_passes(quantizing)]
            figures.setdefault("others", {})[arch] = [as_json(one.kernel) | {"kernel": str(one)} for one in others]
            print(*(one.line() for one in others), sep="\n")
            for name, share in static_quantize.two_passes(quantizing).items():
                print(f"{arch} {name} in two passes: {100 * share:.0f} % of a copy")
        if arguments.pictures is not None:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            picture(arguments.pictures / f"static-{arch}.svg", arch, kernels)
    print()
    failures = figures["failures"]
    for line in failures[:_LINES]:
        print(line)
    if len(failures) > _LINES:
        print(f"... and {len(failures) - _LINES} more; --json has all")
    print(f"{len(failures)} failures, {len(KNOWN)} known misses")
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
    if int(name.removeprefix("sm_").rstrip("af")) not in GPUS:
        raise argparse.ArgumentTypeError(f"the model has no GPU of {text}; it has {', '.join(map(str, GPUS))}")
    return name


def _rules(sources: Sequence[str], targets: Sequence[str], every: bool) -> Iterator[CastRule]:
    for src in [gpucast.dtype(name) for name in sources] or NUMERIC:
        for dst in [gpucast.dtype(name) for name in targets] or NUMERIC:
            yield from rules(src, dst) if every else [resolve(src, dst)]


def as_json(kernel: StaticKernel) -> dict[str, Any]:
    """All figures of a kernel."""
    found = asdict(estimate(kernel))
    names = "instructions loop loads stores shared registers local".split()
    return {
        "kernel": kernel.source.kernel.name,
        "src": kernel.rule.src.name,
        "dst": kernel.rule.dst.name,
        "elements": kernel.source.kernel.elements,
        "threads": kernel.source.kernel.threads,
        "per_element": round(kernel.per_element, 3),
        **{name: getattr(kernel, name) for name in names},
        "estimate": {**found, "use": {unit: round(share, 3) for unit, share in found["use"].items()}},
    }


def _print(arch: str, kernels: Sequence[Checked], sass: bool) -> None:
    full = [fullest(one.kernel) for one in kernels]
    counts = ", ".join(f"{sum(share > limit for share in full)} above {limit}" for limit in (1, 0.85, FULL, 0.65))
    print(f"\n{arch}: {len(kernels)} kernels, {kernels[0].kind}; estimates")
    print(f"busiest unit at the speed of a copy: median {statistics.median(full):.2f}, most {max(full):.2f}; {counts}")
    gpu, shares = GPUS[kernels[0].kernel.capability], [one.estimate.share for one in kernels]
    print(f"{gpu.name}: {shares.count(1)} kernels reach {gpu.bandwidth} TB/s, the slowest {min(shares):.0%} of it")
    shown = sorted(kernels, key=lambda one: -fullest(one.kernel)) if len(kernels) > _SHOWN else kernels
    for one in shown[:_SHOWN]:
        print(one.line())
        if sass:
            print("\n".join(map(str, one.kernel.path)))


def picture(path: Path, arch: str, kernels: Sequence[StaticKernel]) -> None:
    """The heat map of how much of its time the busiest unit works at the speed of a copy. Of several rules of a pair it
    shows the one with the highest figure."""
    most: dict[tuple[str, str], float] = {}
    for kernel in kernels:
        pair = kernel.rule.src.name, kernel.rule.dst.name
        most[pair] = max(fullest(kernel), most.get(pair, 0.0))
    version = "NVRTC {}.{}".format(*compiler.compiler().version)
    origin = f"estimate from the machine code of {version}, {time.strftime('%Y-%m-%d')}, commit {commit() or 'unknown'}"
    gpu = GPUS[kernels[0].capability].name
    title = f"gpucast: the busiest unit at the speed of a copy, {arch} on {gpu}"
    notes = ["the share of its time that it works", f"{origin}; no GPU was used"]
    text = heatmap(most, title, notes, low=0, middle=FULL, high=2 * FULL, good="low")
    path.write_text(text, encoding="utf-8")
