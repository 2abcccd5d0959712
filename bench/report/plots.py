# SPDX-License-Identifier: Apache-2.0
"""Pictures of the results of a GPU: speed by size, share of the ceiling by pair, speed-up over each rival."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.cases.contenders import OURS
from bench.gpu import plan as gpu_plan
from bench.report.figures import PACKED, WHOLE, Group, geometric_mean, groups, rivals, speed_ups
from bench.report.heatmap import heatmap
from bench.report.results import Results
from gpucast.parity.cases import NUMERIC

#: Colours that colour-blind readers can distinguish, also in print; ours is the dark one.
_COLOURS = {OURS: "#1c5f7d", "CuPy copyto": "#e8590c", "torch copy_": "#7b5ea7"}
_MARKERS = {OURS: "o", "CuPy copyto": "s", "torch copy_": "^"}
#: Panels of the picture of sizes: one pair of each kind.
_PANELS = (
    ("FLOAT", "FLOAT16"),
    ("BFLOAT16", "FLOAT"),
    ("INT8", "UINT8"),
    ("FLOAT", "FLOAT8E4M3FN"),
    ("UINT8", "FLOAT16"),
    ("INT4", "FLOAT16"),
)


def draw(results: Results) -> list[Path]:
    """Write the pictures for which there are figures, next to the results."""
    stem = results.path.with_suffix("")
    found = []
    for name, picture in (("ceiling", share_by_pair), ("sizes", speed_by_size), ("speed-up", speed_up_by_rival)):
        path = stem.with_name(f"{stem.name}-{name}.png")
        if picture(results, path):
            found.append(path)
    return found


def share_by_pair(results: Results, path: Path) -> bool:
    """The heat map of all pairs: our speed divided by that of the better ceiling."""
    found = groups(results, gpu_plan.LARGE)
    shares = {(group.ours.src, group.ours.dst): group.share for group in found if group.share}
    names = [measurement.name for measurement in NUMERIC]
    if not shares:
        return False
    heatmap(
        path,
        names,
        names,
        [[100 * shares.get((src, dst), math.nan) for dst in names] for src in names],
        f"gpucast: share of a copy's speed\n{results.label}; {gpu_plan.LARGE:,} elements; goals: "
        f"{WHOLE:.0%}, types below one byte {PACKED:.0%}",
        "% of our copy kernel in the same measurement",
        low=50,
        high=110,
        middle=95,
        form="{:.0f}",
    )
    return True


def speed_by_size(results: Results, path: Path) -> bool:
    """Speed against the number of elements: ours and the main rivals', with the 5th and 95th percentiles."""
    measured: dict[tuple[str, str], list[Group]] = {}
    for group in groups(results):
        # Single elements say what a call costs; lengths that are no power of two would sit on top of their neighbours.
        if group.ours.n > 1 and group.ours.n & (group.ours.n - 1) == 0:
            measured.setdefault((group.ours.src, group.ours.dst), []).append(group)
    panels = [pair for pair in _PANELS if pair in measured]
    if not panels:
        return False
    least = min((one.bytes for one in results.ceilings), default=0) / 2
    rows = -(-len(panels) // 3)
    figure, axes = _figure(results, "gpucast: speed by size", (12, 1 + 3.3 * rows), rows, min(3, len(panels)))
    for place, (src, dst) in enumerate(panels):
        panel = axes[place]
        found = sorted(measured[src, dst], key=lambda group: group.ours.n)
        for name, colour in _COLOURS.items():
            timed = [
                measurement
                for group in found
                if (measurement := group.rows.get(name)) is not None and measurement.times
            ]
            if not timed:
                continue
            sizes = [measurement.n for measurement in timed]
            panel.plot(
                sizes,
                [measurement.speed / 1e9 for measurement in timed],
                color=colour,
                marker=_MARKERS[name],
                ms=4,
                label=name,
            )
            low, high = (
                [measurement.bytes / getattr(measurement.times, field) / 1e9 for measurement in timed]
                for field in ("p95", "p5")
            )
            panel.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        # The nearest ceiling may be far from what is smaller than all of them.
        large = [group for group in found if group.ours.bytes >= least]
        sizes = [group.ours.n for group in large]
        for name, style, speeds in (
            ("memcpy", ":", [group.memcpy / 1e9 for group in large]),
            ("copy kernel", "--", [group.copy_kernel / 1e9 for group in large]),
        ):
            if any(speeds):
                panel.plot(sizes, speeds, color="#777777", linestyle=style, lw=1, label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(f"{src} to {dst}", fontsize=10)
        panel.set_xlabel("elements", fontsize=8)
        panel.set_ylabel("GB/s read and written", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
    # The first panel need not have every contender.
    handles = {
        label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), fontsize=9, frameon=False)
    return _save(figure, path)


def speed_up_by_rival(results: Results, path: Path) -> bool:
    """For every rival the speed-ups of its pairs with large arrays, each a dot, and their geometric mean."""
    found = groups(results, gpu_plan.LARGE)
    by_rival = {name: speed_ups(found, name) for name in rivals(results)}
    by_rival = {name: pairs for name, pairs in by_rival.items() if pairs}
    if not by_rival:
        return False
    title = f"gpucast: speed-up over each rival, {gpu_plan.LARGE:,} elements"
    figure, axes = _figure(results, title, (10, 1.6 + 0.55 * len(by_rival)), 1, 1, left=0.22)
    panel = axes[0]
    for place, (name, pairs) in enumerate(by_rival.items()):
        ratios = sorted(ratio for _, ratio in pairs)
        # Dots spread over the height of a line, so that none hides another.
        heights = [place + 0.36 * ((number * 0.618) % 1 - 0.5) for number in range(len(ratios))]
        panel.scatter(ratios, heights, s=12, color=_COLOURS[OURS], alpha=0.5, linewidths=0)
        mean = geometric_mean(found, name)
        assert mean is not None
        panel.plot([mean, mean], [place - 0.32, place + 0.32], color="#e8590c", lw=2)
        panel.annotate(f"{mean:.2f}", (mean, place - 0.34), ha="center", va="bottom", fontsize=8, color="#b34700")
    panel.axvline(1, color="#444444", lw=1)
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100) if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_yticks(range(len(by_rival)), [f"{name} ({len(pairs)})" for name, pairs in by_rival.items()], fontsize=9)
    panel.set_ylim(len(by_rival) - 0.4, -0.7)
    panel.set_xlabel("their time over ours (right of 1: gpucast is quicker); line: geometric mean", fontsize=9)
    panel.grid(axis="x", alpha=0.3)
    return _save(figure, path)


def _figure(
    results: Results, title: str, size: tuple[float, float], rows: int, columns: int, left: float = 0.07
) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    height = size[1]
    figure.subplots_adjust(left, 0.75 / height + 0.02, 0.98, 1 - 0.95 / height, wspace=0.28, hspace=0.42)
    figure.text(0.02, 1 - 0.32 / height, title, fontsize=13, fontweight="bold")
    figure.text(0.02, 1 - 0.56 / height, results.label, fontsize=9, color="#555555")
    return figure, list(panels.flat)


def _save(figure: Figure, path: Path) -> bool:
    figure.savefig(path, dpi=150)
    return True
