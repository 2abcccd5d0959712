# SPDX-License-Identifier: Apache-2.0
"""The committed results as tables, which docs/pages.py writes into the page on speed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.cases.pairs import LARGE
from bench.report import gpu_tables, host_tables, static_tables
from bench.report import results as gpu_results
from bench.revision import FOLDER, ROOT
from bench.static.estimate import GPUS

DOCS = ROOT / "docs"


def speed_table() -> str:
    """Casts between everyday types, by size, from the newest host result."""
    path, figures = newest_host()
    host, machine = figures["host"], figures["machine"]
    torch = f", torch {host['torch']}" if "torch" in host else ""
    lines = [
        f"`python -m bench --host`, {machine['date']}, commit {machine['commit']}, {machine['processor']},",
        f"default settings, NumPy {machine['numpy']}, ml_dtypes {machine['ml_dtypes']}{torch}",
        f"({_link('all pairs', path)}).",
        "Each cell: the time of gpucast divided by the time of the other library, as the median over all pairs of",
        f"{len(host_tables.EVERYDAY)} everyday types, then for the slowest pair. Below 1 gpucast is quicker.",
        f"The quickest of {host['repeats']} or more runs counts.",
        "",
        host_tables.table(host_rows(figures)),
    ]
    return "\n".join(lines) + "\n"


def newest_host() -> tuple[Path, dict[str, Any]]:
    path = max(FOLDER.glob("host-*.json"))
    return path, json.loads(path.read_text(encoding="utf-8"))


def host_rows(figures: dict[str, Any]) -> list[host_tables.HostMeasurement]:
    return [host_tables.HostMeasurement(**row) for row in figures["host"]["rows"]]


def host_details() -> str:
    """What the pages of the documentation say beyond the table: all pairs, and text."""
    figures = newest_host()[1]
    return "\n".join([*host_tables.all_pairs(host_rows(figures)), "", strings_line(figures["host"]["strings"]), ""])


def gpu_section(folder: Path = FOLDER) -> str:
    """The newest results of a GPU: tables, and the picture."""
    results = gpu_results.newest(folder)
    if results is None:
        return "No GPU has run gpucast yet.\n"
    path = results.path
    assert path is not None
    tables, figures = (_link(text, path.with_suffix(end)) for text, end in (("tables", ".md"), ("figures", ".jsonl")))
    parts = [
        f"`python -m bench` on {results.label} (all {tables} and {figures}).",
        gpu_tables.common_table(results, LARGE),
        "\n".join(f"- {line}" for line in [*gpu_tables.pair_lines(results), *gpu_tables.rival_lines(results, LARGE)]),
        gpu_tables.case_table(results, "calls"),
    ]
    picture = path.with_suffix(".svg")
    if picture.exists():
        parts.append("!" + _link(f"share of a copy's speed: {results.label}", picture))
    return "\n\n".join(part for part in parts if part) + "\n"


def static_section() -> str:
    """The newest estimates, for the GPUs that casts are made for."""
    path = max(FOLDER.glob("static-*.json"))
    figures = json.loads(path.read_text(encoding="utf-8"))
    static, machine = figures["static"], figures["machine"]
    parts = [f"{static['compiler']}, {machine['date']} ({_link('all figures', path)})."]
    for arch in ("sm_90", "sm_100a"):
        gpu = GPUS[int(arch.removeprefix("sm_").rstrip("af"))].name
        parts.append(f"{gpu} ({arch}):\n\n{static_tables.estimates(static['architectures'][arch])}")
    return "\n\n".join(parts) + "\n"


def _link(text: str, path: Path) -> str:
    return f"[{text}]({Path(os.path.relpath(path, DOCS)).as_posix()})"


def strings_line(rows: Any) -> str:
    shown = [(name, rate) for name, rate in rows if name.split(",")[0].split()[-1] in ("FLOAT", "DOUBLE", "INT64")]
    return "Text, M elements/s: " + "; ".join(f"{name} {rate / 1e6:.1f}" for name, rate in shown) + "."
