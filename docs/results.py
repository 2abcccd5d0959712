# SPDX-License-Identifier: Apache-2.0
"""The committed results of the benchmark, as Markdown and as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import readme
from bench.host import others, pairs
from bench.report import host_tables, markdown
from bench.report.heatmap import heatmap
from bench.revision import FOLDER
from gpucast.parity.cases import all_cases, all_pairs

#: The pairs that are named.
_SLOWEST = 5
HOST_PICTURE = Path(__file__).resolve().parent / "static" / "host.svg"


def host_picture() -> str:
    """The time of every pair over astype's, a million elements with the library."""
    _, figures = readme.newest_host()
    machine, size = figures["machine"], 1_000_000
    rows = (row for row in readme.host_rows(figures) if row.elements == size)
    ratios = host_tables.worst_ratios(rows, ("cast", "astype"))
    title = f"Casts on the host: time of the compiled library over astype's, {size:,} elements"
    note = f"one core of {machine['processor']}, {machine['date']}, commit {machine['commit']}"
    return heatmap(ratios, title, [note], low=0, middle=1, high=2, good="low")


def parity() -> str:
    """The newest comparison of the kernels as host code with the reference."""
    newest = max(FOLDER.glob("parity-kernels-*.json"))
    found = json.loads(newest.read_text(encoding="utf-8"))
    link, picture = (f"../bench/results/{newest.with_suffix(suffix).name}" for suffix in (".json", ".svg"))
    return (
        f"{found['rules']:,} of {rules():,} rules (pairs of types with their attributes), {found['elements']:,}"
        f" elements, {found['wrong']:,} wrong, {found['date']} ([figures]({link})).\n\n"
        f"![Grid of all pairs of types]({picture})"
    )


def proofs() -> str:
    """What the committed certificates say, a line for each."""
    cases = all_cases(all_pairs())
    every = f"There are {len(cases):,} rules: {len(all_pairs())} pairs of types, and their attributes."
    lines = [f"{every} A certificate holds for the PTX that it names. A rule that it does not name is not proved.\n"]
    known = {_name(case.rule.src.name, case.rule.dst.name, dict(case.attributes)) for case in cases}
    for path in sorted(FOLDER.glob("proof-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        seconds: dict[str, float] = {}
        for proof in found["proofs"]:
            for method, spent in proof["seconds"].items():
                seconds[method] = seconds.get(method, 0.0) + spent
        both = sum(proof["seconds"].keys() >= found["solvers"].keys() for proof in found["proofs"])
        agreed = f"; {both:,} of them by each of {' and '.join(found['solvers'])}" if len(found["solvers"]) > 1 else ""
        lost = found["rules"] - found["proved"]
        # Of rules that there are no longer nothing is said.
        proved = sum(one["verdict"] == "proved" and _name(**one) in known for one in found["proofs"])
        failed = f", {lost:,} not" if lost else ""
        times = ", ".join(f"{method} {spent:,.0f} s" for method, spent in seconds.items())
        lines.append(
            f"- {found['arch']}, paths {found['paths']}: {proved:,} rules proved{failed}"
            f" ({times}{agreed}; NVRTC {found['nvrtc']},"
            f" {found['date']}; [certificate](../bench/results/{path.name}))"
        )
    return "\n".join(lines)


def _name(src: str, dst: str, attributes: dict[str, Any], **others: Any) -> tuple[Any, ...]:
    """A rule, as the entries of certificates name it."""
    return src, dst, *sorted(attributes.items())


def rules() -> int:
    """How many there are."""
    return len(all_cases(all_pairs()))


def files() -> str:
    """A list of the committed results."""
    kinds = {".json": "figures", ".jsonl": "figures", ".md": "tables", ".svg": "picture", ".png": "picture"}
    found = [path for path in sorted(FOLDER.iterdir()) if path.suffix in kinds]
    lines = [f"- [{path.name}](../bench/results/{path.name}): {kinds[path.suffix]}" for path in found]
    return "\n".join(lines)


def host_pairs() -> str:
    """The newest times of all pairs beside a copy: the median, and the pairs that take longest."""
    newest = max(FOLDER.glob("pairs-host-*.json"))
    found = json.loads(newest.read_text(encoding="utf-8"))
    rows = sorted((pairs.PairMeasurement(**row) for row in found["rows"]), key=lambda row: -row.ratio)
    slow = ", ".join(f"{row.src} to {row.dst} {row.ratio:.2f}" for row in rows[:_SLOWEST])
    machine = found["machine"]
    return (
        f"{pairs.summary(rows)}. The slowest: {slow}. {found['elements']:,} elements, {machine['processor']},"
        f" {machine['date']}, commit {machine['commit']} ([figures](../bench/results/{newest.name}))."
    )


def quantize_others() -> str:
    """The newest times of quantizing beside other libraries."""
    return others.table(others.newest())


def calls() -> str:
    """The newest cost of repeated calls."""
    newest = max(FOLDER.glob("calls-*.json"))
    found = json.loads(newest.read_text(encoding="utf-8"))
    machine, link = found["machine"], f"../bench/results/{newest.name}"
    lines = [f"| {call} | {time.replace('x', ' times')} |" for call, time in found["calls"].items()]
    head = (
        f"Arrays of {found['size']:,} FLOATs, in most rows to FLOAT16; lists of 100 short ones. "
        f"{machine['processor']}, {machine['date']}, commit {machine['commit']} ([figures]({link}))."
    )
    return "\n".join([head, "", "| Call | Time |", "| --- | --- |", *lines])


def training() -> str:
    """The newest times of steps of training: a line for each side, a column for each model."""
    newest = max(FOLDER.glob("training-host-*.json"))
    found = json.loads(newest.read_text(encoding="utf-8"))
    machine, versions = found["machine"], ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in found["rows"]:
        model = " x ".join(map(str, row["model"]))
        cells.setdefault((row["kind"], row["side"]), {})[model] = f"{row['seconds'] / row['base']:.2f}"
    models = next(iter(cells.values()))
    head = (
        f"Time of a step, as a multiple of the step in FLOAT, for rows x columns x columns between the layers. "
        f"{machine['processor']}, {versions}, {machine['date']}, commit {machine['commit']} "
        f"([figures](../bench/results/{newest.name}))."
    )
    lines = ([*of, *(ratios[model] for model in models)] for of, ratios in cells.items())
    return "\n".join([head, "", markdown.table(["Casts", "By", *models], lines)])


TEXTS: dict[str, Callable[..., str]] = {
    "calls": calls,
    "gpu": readme.gpu_section,
    "speed": readme.speed_table,
    "static": readme.static_section,
    "host-details": readme.host_details,
    "parity": parity,
    "proofs": proofs,
    "result-files": files,
    "host-pairs": host_pairs,
    "quantize-others": quantize_others,
    "training": training,
}
