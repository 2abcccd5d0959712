# SPDX-License-Identifier: Apache-2.0
"""``python -m bench --static``: estimates the speed of every kernel from its machine code. Needs no GPU.

For each pair of types and architecture it compiles the kernel of contiguous arrays with the default rule, and counts
what a thread executes for a full aligned tile (`bench.sass_paths` says how the way is found): all instructions from the
entry to the exit, index arithmetic, tables and barriers included, over the elements that the thread casts. The check
fails where a pair leaves its budget (`bench.static_budget`). Shares of bandwidth are estimates (`bench.static_model`).
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
from bench import static_quantize, static_tiles
from bench.heatmap import heatmap
from bench.revision import commit
from bench.static_budget import KNOWN, budget, over, problems, verdict
from bench.static_kernels import StaticKernel, measure
from bench.static_model import GPUS, estimates
from gpucast.cli.progress import progress_bar
from gpucast.compile import cubin
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
    figures: dict[str, Any] = {"shape": arguments.shape, "architectures": {}, "failures": []}
    for arch in arguments.arch or architectures():
        with progress_bar(len(chosen), wanted=True, unit=" kernels") as advance:
            kernels = measure(chosen, arch, arguments.shape, advance)
        _print(arch, arguments.shape, kernels, arguments.sass)
        figures["architectures"][arch] = [as_json(kernel) for kernel in kernels]
        figures["failures"] += verdict(kernels)
        if arguments.shape == "contiguous" and not (arguments.src or arguments.dst or arguments.all_rules):
            quantizing = static_quantize.measure(arch)
            static_quantize.report(quantizing)
            figures["failures"] += static_quantize.verdict(quantizing)
            tiles = static_tiles.measure(arch)
            static_quantize.report(tiles)
            figures["failures"] += static_quantize.verdict(tiles, static_tiles.KNOWN)
        if arguments.pictures is not None:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            picture(arguments.pictures / f"static-{arch}.svg", arch, kernels)
    print()
    failures = figures["failures"]
    for line in failures[:_LINES]:
        print(line)
    if len(failures) > _LINES:
        print(f"... and {len(failures) - _LINES} more; --json has all")
    known = len(KNOWN) + len(static_quantize.KNOWN) + len(static_tiles.KNOWN)
    print(f"{len(failures)} failures, {known} known misses")
    return figures


def architectures() -> list[str]:
    """The architectures that gpucast compiles for, for the devices of the check."""
    return [cubin.architecture(capability) for capability in CAPABILITIES]


def _architecture(text: str) -> str:
    try:
        name = cubin.compiler().parse(text)
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
    allowed = budget(kernel)
    return {
        "kernel": kernel.source.name,
        "src": kernel.rule.src.name,
        "dst": kernel.rule.dst.name,
        "elements": kernel.source.elements,
        "threads": kernel.source.threads,
        "instructions": kernel.instructions,
        "shortest": kernel.shortest,
        "rare": kernel.rare,
        "per_element": round(kernel.per_element, 3),
        "budget": None if allowed is None else round(allowed, 3),
        "loop": kernel.loop,
        "branches": kernel.branches,
        "loads": kernel.loads,
        "stores": kernel.stores,
        "shared_loads": kernel.shared_loads,
        "shared": kernel.shared,
        "registers": kernel.registers,
        "local": kernel.local,
        "problems": problems(kernel),
        "estimates": {
            one.gpu: {"share": round(one.share, 3), "bound": one.bound, "threads": one.threads}
            for one in estimates(kernel)
        },
    }


def _print(arch: str, shape: str, kernels: Sequence[StaticKernel], sass: bool) -> None:
    ratios = [over(kernel) for kernel in kernels]
    print(f"\n{arch}: {len(kernels)} kernels, {shape}")
    if not any(map(math.isnan, ratios)):
        many = sum(ratio > 1 for ratio in ratios)
        middle = statistics.median(ratios)
        print(f"instructions / budget: median {middle:.2f}, most {max(ratios):.2f}; {many} kernels above 1")
    for gpu in GPUS:
        shares = [one.share for kernel in kernels for one in estimates(kernel) if one.gpu == gpu.name]
        if shares:
            full, least = sum(share == 1 for share in shares), min(shares)
            print(f"{gpu.name}, estimate: {full} kernels can reach {gpu.bandwidth} TB/s, the slowest {least:.0%} of it")
    shown = list(kernels)
    if len(kernels) > _SHOWN:
        shown = sorted(kernels, key=lambda kernel: -kernel.per_element / kernel.moved)[:_SHOWN]
        print(f"the {_SHOWN} with the most instructions per byte:")
    names = [gpu.name for gpu in GPUS if gpu.capability == kernels[0].capability]
    header = ["kernel", "el", "instr/el", "budget", "shortest", "rare", "br", "loads", "stores", "lds", "regs", "smem"]
    lines = [[*header, *(f"{name} (estimate)" for name in names)]]
    for kernel in shown:
        cells = {one.gpu: f"{one.share:.0%} {one.bound} {one.threads}" for one in estimates(kernel)}
        lines.append([*_cells(kernel), *(cells.get(name, "-") for name in names)])
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip())
    if sass:
        for kernel in shown:
            elements = kernel.source.elements
            print(f"\n{arch} {kernel.source.name}: {kernel.instructions} instructions, {elements} elements")
            print("\n".join(map(str, kernel.path)))


def _cells(kernel: StaticKernel) -> list[str]:
    allowed, elements = budget(kernel), kernel.source.elements
    return [
        kernel.source.name.removeprefix("gpucast_"),
        str(elements),
        f"{kernel.per_element:.2f}{' (one turn)' if kernel.loop else ''}",
        "-" if allowed is None else f"{allowed:.2f}",
        f"{kernel.shortest / elements:.2f}",
        "-" if kernel.rare is None else f"{kernel.rare / elements:.2f}",
        str(kernel.branches),
        _accesses(kernel.loads),
        _accesses(kernel.stores),
        str(kernel.shared_loads),
        f"{kernel.registers}{f' +{kernel.local} spilt' if kernel.local else ''}",
        str(kernel.shared),
    ]


def _accesses(counts: dict[int, int]) -> str:
    return "+".join(f"{count}x{width}" for width, count in sorted(counts.items(), reverse=True)) or "none"


def picture(path: Path, arch: str, kernels: Sequence[StaticKernel]) -> None:
    """The heat map of instructions as a share of the budget; of instructions per byte moved where there is no budget.

    Of several rules of a pair it shows the one with the most instructions.
    """
    names = [row.name for row in NUMERIC]
    place = {name: number for number, name in enumerate(names)}
    values = [[math.nan] * len(names) for _ in names]
    bounded = budget(kernels[0]) is not None
    for kernel in kernels:
        row, column = values[place[kernel.rule.src.name]], place[kernel.rule.dst.name]
        value = over(kernel) if bounded else kernel.per_element / kernel.moved
        row[column] = value if math.isnan(row[column]) else max(row[column], value)
    what = "as a share of the budget" if bounded else "per byte moved"
    origin = f"from the machine code, {time.strftime('%Y-%m-%d')}, commit {commit() or 'unknown'}; no GPU was used"
    title = f"gpucast: instructions {what}, {arch}\n{origin}"
    if bounded:
        heatmap(path, names, names, values, title, "instructions / budget", low=0, middle=1, high=2, good="low")
    else:
        heatmap(path, names, names, values, title, "instructions / byte", low=0, high=8, good="low", form="{:.1f}")
