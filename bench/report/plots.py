# SPDX-License-Identifier: Apache-2.0
"""Pictures of the results of a GPU: share of a copy by pair, speed by size."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from bench.cases.contenders import COPY, OURS
from bench.cases.pairs import LARGE
from bench.report.gpu_tables import PACKED, WHOLE, Group, groups
from bench.report.heatmap import heatmap
from bench.report.results import Results
from gpucast.parity.cases import NUMERIC

#: Name -> colour and marker, which colour-blind readers can distinguish, also in print; ours is the dark one.
_LINES = {
    OURS: ("#1c5f7d", "o"),
    "CuPy copyto": ("#e8590c", "s"),
    "torch copy_": ("#7b5ea7", "^"),
    COPY: ("#777777", "x"),
}
#: Panels of the picture of sizes: one pair of each kind.
_PANELS = (
    "FLOAT to FLOAT16",
    "BFLOAT16 to FLOAT",
    "INT8 to UINT8",
    "FLOAT to FLOAT8E4M3FN",
    "UINT8 to FLOAT16",
    "INT4 to FLOAT16",
)


def draw(results: Results) -> list[Path]:
    """Write the pictures for which there are figures, next to the results."""
    assert results.path is not None
    stem = results.path.with_suffix("")
    pictures = {"share": share_by_pair, "sizes": speed_by_size}
    paths = {stem.with_name(f"{stem.name}-{name}.png"): picture for name, picture in pictures.items()}
    return [path for path, picture in paths.items() if picture(results, path)]


def share_by_pair(results: Results, path: Path) -> bool:
    """The heat map of all pairs: our speed divided by that of a copy."""
    shares = {(group.ours.src, group.ours.dst): group.share for group in groups(results, LARGE) if group.share}
    names = [row.name for row in NUMERIC]
    if not shares:
        return False
    heatmap(
        path,
        names,
        names,
        [[100 * shares.get((src, dst), math.nan) for dst in names] for src in names],
        f"gpucast: share of a copy's speed\n{results.label}; {LARGE:,} elements; goals: "
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
    measured: dict[str, list[Group]] = {name: [] for name in _PANELS}
    for group in groups(results):
        # Single elements say what a call costs; lengths that are no power of two would sit on top of their neighbours.
        if group.name in measured and group.ours.n > 1 and group.ours.n & (group.ours.n - 1) == 0:
            measured[group.name].append(group)
    measured = {name: sorted(found, key=lambda group: group.ours.n) for name, found in measured.items() if found}
    if not measured:
        return False
    rows, columns = -(-len(measured) // 3), min(3, len(measured))
    figure = Figure(figsize=(4 * columns, 1 + 3.3 * rows), layout="constrained")
    figure.suptitle(f"gpucast: speed by size\n{results.label}", fontsize=11)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, (title, found) in zip(panels, measured.items(), strict=False):
        for name, (colour, marker) in _LINES.items():
            timed = [(row, row.times) for group in found if (row := group.rows.get(name)) is not None and row.times]
            sizes = [row.n for row, _ in timed]
            speeds = [row.speed / 1e9 for row, _ in timed]
            low = [row.bytes / times.p95 / 1e9 for row, times in timed]
            high = [row.bytes / times.p5 / 1e9 for row, times in timed]
            panel.plot(sizes, speeds, color=colour, marker=marker, ms=4, label=name)
            panel.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(title, fontsize=10)
        panel.set(xlabel="elements", ylabel="GB/s read and written")
        panel.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)
    return True
