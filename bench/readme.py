# SPDX-License-Identifier: Apache-2.0
"""Write tables of the pages from the code and from the committed results: ``python -m bench.readme [--check]``."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from bench.cases.pairs import LARGE
from bench.report import gpu_tables, host_tables, static_tables
from bench.report import results as gpu_results
from bench.report.markdown import table
from bench.revision import FOLDER, ROOT
from bench.static.estimate import GPUS
from gpucast.cli import dtypes
from gpucast.core.dtypes import DTYPES

DOCS = ROOT / "docs"
#: The page of each table.
PAGES = {
    "dtypes": DOCS / "dtypes" / "index.md",
    "gpu": DOCS / "performance.md",
    "speed": DOCS / "performance.md",
    "static": DOCS / "performance.md",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    check = parser.parse_args().check
    outdated = {page: text for page, text in rendered().items() if text != page.read_text(encoding="utf-8")}
    if check:
        return int(bool(outdated))
    for page, text in outdated.items():
        page.write_text(text, encoding="utf-8")
    return 0


def rendered() -> dict[Path, str]:
    """The pages with every table written anew."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES.values()}
    made_by = {"dtypes": dtype_table, "speed": speed_table, "gpu": gpu_section, "static": static_section}
    for name, make in made_by.items():
        page = PAGES[name]
        places = re.findall(rf"<!-- {name}: [^\n]*-->\n.*?<!-- end -->", texts[page], flags=re.DOTALL)
        if len(places) != 1:
            raise SystemExit(f"bench.readme: {page} has {len(places)} places for the {name} table; expected one")
        head, _, _ = places[0].partition("\n")
        texts[page] = texts[page].replace(places[0], f"{head}\n\n{make()}\n<!-- end -->")
    return texts


def dtype_table() -> str:
    """What tells the types apart. `gpucast dtypes` has twelve columns."""
    rows = map(dtypes.describe, DTYPES)
    cells = ([row["name"], str(row["bits"] or ""), dtypes.range_text(row), str(row["opset"] or "")] for row in rows)
    return table(["Type", "Bits", "Range", "First opset"], cells) + "\n"


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
        return "No run on a GPU is recorded yet.\n"
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
    return (
        "Text, M elements/s (fast: with orjson): " + "; ".join(f"{name} {rate / 1e6:.1f}" for name, rate in shown) + "."
    )


if __name__ == "__main__":
    sys.exit(main())
