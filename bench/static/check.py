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
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gpucast
from bench.report.heatmap import heatmap
from bench.revision import commit
from bench.static import layouts as static_layouts
from bench.static import published as static_published
from bench.static import quantize as static_quantize
from bench.static.budget import FULL, KNOWN, fullest, of_casts, verdict
from bench.static.kernels import StaticKernel, measure
from bench.static.model import GPUS, JUDGE, Estimate, estimates
from gpucast.cli.progress import progress_bar
from gpucast.compile import compiler
from gpucast.core.rule import CastRule, resolve
from gpucast.parity.cases import NUMERIC, rules

#: The compute capabilities that the check is for.
CAPABILITIES = ((8, 0), (9, 0), (10, 0))
#: Pairs that a table shows in full; of more only the worst.
_SHOWN = 30
#: Failures that are printed.
_LINES = 100


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
        _print(arch, arguments.shape, kernels, arguments.sass)
        figures["architectures"][arch] = [as_json(kernel) for kernel in kernels]
        figures["failures"] += verdict(of_casts(kernels))
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
    if everything:
        failures += static_published.report()
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
    return name


def _rules(sources: Sequence[str], targets: Sequence[str], every: bool) -> Iterator[CastRule]:
    for src in [gpucast.dtype(name) for name in sources] or NUMERIC:
        for dst in [gpucast.dtype(name) for name in targets] or NUMERIC:
            yield from rules(src, dst) if every else [resolve(src, dst)]


def as_json(kernel: StaticKernel) -> dict[str, Any]:
    """All figures of a kernel."""
    names = "instructions loop loads stores shared registers local".split()
    return {
        "kernel": kernel.source.name,
        "src": kernel.rule.src.name,
        "dst": kernel.rule.dst.name,
        "elements": kernel.source.elements,
        "threads": kernel.source.threads,
        "per_element": round(kernel.per_element, 3),
        **{name: getattr(kernel, name) for name in names},
        "estimates": {
            one.gpu: {
                "share": round(one.share, 3),
                "bound": one.bound,
                "use": {unit: round(share, 3) for unit, share in one.use.items()},
                "threads": one.threads,
                "in_flight": round(one.in_flight),
                "needed": round(one.needed),
            }
            for one in estimates(kernel)
        },
    }


def _print(arch: str, shape: str, kernels: Sequence[StaticKernel], sass: bool) -> None:
    full = [fullest(kernel) for kernel in kernels]
    print(f"\n{arch}: {len(kernels)} kernels, {shape}")
    if not any(map(math.isnan, full)):
        counts = ", ".join(f"{sum(one > limit for one in full)} above {limit}" for limit in (1, 0.85, FULL, 0.65))
        print(
            f"busiest unit at the speed of a copy: median {statistics.median(full):.2f}, most {max(full):.2f}; {counts}"
        )
    for gpu in GPUS:
        shares = [one.share for kernel in kernels for one in estimates(kernel) if one.gpu == gpu.name]
        if shares:
            whole, least = sum(share == 1 for share in shares), min(shares)
            print(f"{gpu.name}, estimate: {whole} kernels reach {gpu.bandwidth} TB/s, the slowest {least:.0%} of it")
    shown = list(kernels)
    if len(kernels) > _SHOWN:
        shown = sorted(kernels, key=lambda kernel: -fullest(kernel))[:_SHOWN]
        print(f"the {_SHOWN} with the busiest units:")
    names = [gpu.name for gpu in GPUS if gpu.capability == kernels[0].capability]
    header = ["kernel", "el", "instr/el", "loads", "stores", "lds", "regs", "smem"]
    lines = [[*header, *(f"{name} (estimate)" for name in names)]]
    for kernel in shown:
        found = {one.gpu: one for one in estimates(kernel)}
        lines.append([*_cells(kernel), *(_estimate(found[name]) for name in names)])
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip())
    if sass:
        for kernel in shown:
            elements = kernel.source.elements
            print(f"\n{arch} {kernel.source.name}: {kernel.instructions} instructions, {elements} elements")
            print("\n".join(map(str, kernel.path)))


def _cells(kernel: StaticKernel) -> list[str]:
    return [
        kernel.source.name.removeprefix("gpucast_"),
        str(kernel.source.elements),
        f"{kernel.per_element:.2f}{f' ({kernel.turns} turns)' if kernel.loop else ''}",
        _accesses(kernel.loads),
        _accesses(kernel.stores),
        str(sum(one.base == "LDS" for one in kernel.path)),
        f"{kernel.registers}{f' +{kernel.local} spilt' if kernel.local else ''}",
        str(kernel.shared),
    ]


def _estimate(one: Estimate) -> str:
    """The share of a copy, the limit, the busiest unit, blocks begun per clock, resident threads."""
    busiest = f"{one.busiest} {one.use[one.busiest]:.2f}"
    return f"{one.share:.0%} {one.bound}; {busiest}; blocks {one.use['blocks']:.2f}; {one.threads}"


def _accesses(counts: dict[int, int]) -> str:
    return "+".join(f"{count}x{width}" for width, count in sorted(counts.items(), reverse=True)) or "none"


def picture(path: Path, arch: str, kernels: Sequence[StaticKernel]) -> None:
    """The heat map of how much of its time the busiest unit works at the speed of a copy; of instructions per byte
    moved for an architecture without a GPU in the model.

    Of several rules of a pair it shows the one with the highest figure.
    """
    names = [row.name for row in NUMERIC]
    place = {name: number for number, name in enumerate(names)}
    values = [[math.nan] * len(names) for _ in names]
    gpu = JUDGE.get(kernels[0].capability)
    for kernel in kernels:
        row, column = values[place[kernel.rule.src.name]], place[kernel.rule.dst.name]
        value = kernel.per_element / kernel.moved if gpu is None else fullest(kernel)
        row[column] = value if math.isnan(row[column]) else max(row[column], value)
    version = "NVRTC {}.{}".format(*compiler.compiler().version)
    origin = f"estimate from the machine code of {version}, {time.strftime('%Y-%m-%d')}, commit {commit() or 'unknown'}"
    if gpu is not None:
        title = f"gpucast: the busiest unit at the speed of a copy, {arch} on {gpu.name}\n{origin}; no GPU was used"
        heatmap(path, names, names, values, title, "share of its time", low=0, middle=FULL, high=2 * FULL, good="low")
    else:
        title = f"gpucast: instructions per byte moved, {arch}\n{origin}; no GPU was used"
        heatmap(path, names, names, values, title, "instructions / byte", low=0, high=8, good="low", form="{:.1f}")
