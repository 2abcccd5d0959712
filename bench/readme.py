# SPDX-License-Identifier: Apache-2.0
"""Write the README's tables from the code and from the committed results: ``python -m bench.readme [--check]``."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from bench import gpu_results, gpu_tables
from bench.gpu_results import FOLDER
from bench.revision import ROOT
from gpucast.cli import dtypes
from gpucast.core.dtypes import DTYPES

README = ROOT / "README.md"
#: Of a GPU's results: the end of a picture's name, and what it shows.
PICTURES = {"ceiling": "share of a copy's speed", "sizes": "speed by size", "speed-up": "speed-up over each rival"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the README is out of date")
    check = parser.parse_args().check
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if check:
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


def rendered(text: str) -> str:
    """The README with every table written anew."""
    for name, table in (("dtypes", dtype_table()), ("speed", speed_table()), ("gpu", gpu_section())):
        places = re.findall(rf"<!-- {name}: [^\n]*-->\n.*?<!-- end -->", text, flags=re.DOTALL)
        if len(places) != 1:
            raise SystemExit(f"bench.readme: README.md has {len(places)} places for the {name} table; expected one")
        head, _, _ = places[0].partition("\n")
        text = text.replace(places[0], f"{head}\n{table}<!-- end -->")
    return text


def dtype_table() -> str:
    """What tells the types apart. `gpucast dtypes` has twelve columns."""
    rows = [
        f"| {row['name']} | {row['bits'] or ''} | {dtypes.range_text(row)} | {row['opset']} |"
        for row in map(dtypes.describe, DTYPES)
    ]
    return "\n".join(["| Type | Bits | Range | First opset |", "| --- | --- | --- | --- |", *rows]) + "\n"


def speed_table() -> str:
    """Ratios by family of source and destination from the newest host result."""
    path = max(FOLDER.glob("host-*.json"))
    figures = json.loads(path.read_text(encoding="utf-8"))
    host, machine = figures["host"], figures["machine"]
    lines = [
        f"`python -m bench --host`, {machine['date']}, commit {machine['commit']}: {host['elements']:,} elements,",
        f"fastest of {host['repeats']} interleaved runs on one core of {machine['processor']},",
        f"NumPy {machine['numpy']}, ml_dtypes {machine['ml_dtypes']} ([all pairs](bench/results/{path.name})).",
        "Speed-up over `x.astype(dst)`: median (slowest to fastest pair); above 1 is quicker than astype.",
        "",
        "| From | To | Pairs | In range | 1 % specials |",
        "| --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in host["rows"]:
        if row["astype"]:
            group = groups.setdefault((kind_of(row["src"]), kind_of(row["dst"])), {})
            group.setdefault(row["kind"], []).append(row["cast"] / row["astype"])
    for (src, dst), kinds in groups.items():
        cells = [spread(values) for values in kinds.values()]
        lines.append(f"| {src} | {dst} | {len(next(iter(kinds.values())))} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def host_details() -> str:
    """What the pages of the documentation say beyond the table: slow pairs, and text."""
    host = json.loads(max(FOLDER.glob("host-*.json")).read_text(encoding="utf-8"))["host"]
    return f"{slow_line(host['rows'])}\n\n{strings_line(host['strings'])}\n"


def gpu_section(folder: Path = FOLDER) -> str:
    """The newest results of a GPU: tables, and the pictures that are there."""
    results = gpu_results.newest(folder)
    if results is None:
        return "No run on a GPU is recorded yet.\n"
    lines = [*gpu_tables.pair_lines(results), *gpu_tables.rival_lines(results)]
    path = results.path
    tables, figures = (_link(text, path.with_suffix(end)) for text, end in (("tables", ".md"), ("figures", ".csv")))
    parts = [
        f"`python -m bench` on {results.label} (all {tables} and {figures}).",
        gpu_tables.common_table(results),
        "\n".join(f"- {line}" for line in lines),
        gpu_tables.call_table(results),
    ]
    for name, what in PICTURES.items():
        picture = path.with_name(f"{path.stem}-{name}.png")
        if picture.exists():
            parts.append("!" + _link(f"{what}: {results.label}", picture))
    return "\n\n".join(part for part in parts if part) + "\n"


def _link(text: str, path: Path) -> str:
    return f"[{text}]({Path(os.path.relpath(path, ROOT)).as_posix()})"


def kind_of(name: str) -> str:
    if "INT" in name or name == "BOOL":
        return "integers"
    return "wide floats" if name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16") else "narrow floats"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def slow_line(rows: Any) -> str:
    """The pairs that take more than 1.5 times as long as astype, which the medians above would hide."""
    slow: dict[str, float] = {}
    for row in rows:
        ratio = row["astype"] / row["cast"]
        if ratio > 1.5:
            pair = f"{row['src']} to {row['dst']}"
            slow[pair] = max(ratio, slow.get(pair, 0.0))
    worst = sorted(slow.items(), key=lambda item: -item[1])
    return "Slower than 1.5 x astype (times): " + ", ".join(f"{pair} {ratio:.1f}" for pair, ratio in worst) + "."


def strings_line(rows: Any) -> str:
    shown = [(name, rate) for name, rate in rows if name.split(",")[0].split()[-1] in ("FLOAT", "DOUBLE", "INT64")]
    return (
        "Text, M elements/s (fast: with orjson): " + "; ".join(f"{name} {rate / 1e6:.1f}" for name, rate in shown) + "."
    )


if __name__ == "__main__":
    sys.exit(main())
