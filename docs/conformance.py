# SPDX-License-Identifier: Apache-2.0
"""Write docs/conformance.md: gpucast compared with ml_dtypes, the onnx reference evaluator and onnxruntime.

``python docs/conformance.py`` writes the page. ``--check`` fails if the page differs from what would be written now;
versions and the rows marked with a dagger may differ. Needs the packages onnx and onnxruntime.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sidebyside import cases
from sidebyside.classify import NUMERIC, VARIES, Comparison, Difference, compare
from sidebyside.page import MEASURED, Page, table, write_or_check
from sidebyside.systems import SYSTEMS, GpucastOperators, Setting, System

from gpucast.core.dtypes import DType

PAGE = Path(__file__).with_suffix(".md")

INTRO = f"""\
# Where gpucast and other systems differ

`python docs/conformance.py` writes this page. It casts the same input with gpucast and with each of the systems below:
every code of every type of 16 bits or fewer, and difficult values of the wider ones (powers of two, midpoints of every
narrower type and their neighbours, limits, NaNs), to every type, with every value of every attribute that has an effect
on it. Everything that is not listed is equal, bit for bit.

- Narrow floating types are shown as `code` and value.
- "Differing" is the number of results that differ, out of all results for the types and attributes of the row.
-{VARIES} marks results that ONNX leaves undefined, or whose bits depend on the processor. The shown ones were measured
  on x86-64, and may differ on other processors or for other array lengths. gpucast gives the same bits everywhere.
"""


def names(rows: Iterable[DType], most: int = 9) -> str:
    """Types in the order of the table. More than `most` types are given as their number and the first three."""
    texts = [row.name for row in sorted(rows, key=NUMERIC.index)]
    return ", ".join(texts) if len(texts) <= most else f"{len(texts)} types: {', '.join(texts[:3])}, ..."


# ---- the section of a system ----


def system_section(found: Comparison) -> Iterator[str]:
    system = found.system
    fixed = [difference for difference in found.differences if not difference.kind.endswith(VARIES)]
    yield f"## {system.title}"
    yield ""
    yield f"{MEASURED}{system.version}."
    yield ""
    yield f"It does {found.pairs} of the {len(NUMERIC) ** 2} pairs of numeric types. Of {found.tried:,} results"
    yield f"{sum(difference.cases for difference in fixed):,} differ, not counting the rows with{VARIES}."
    if not system.has_attributes:
        yield "It has no attributes; what comes nearest was compared: saturate=0 to float8, and saturate=0 with"
        yield "round_mode=nearest to FLOAT8E8M0."
    yield ""
    attributes = ["Attributes"] if system.has_attributes else []
    yield from table(
        ["What", "From", "To", *attributes, "Example", "gpucast", system.title.split()[-1], "Differing"],
        [cells(difference, system) for difference in sorted(found.differences, key=order)],
    )
    if found.refused:
        yield "Pairs that it refuses:"
        yield ""
        yield from refused(found)
        yield ""


def order(difference: Difference) -> tuple[bool, int, str]:
    return difference.kind.endswith(VARIES), min(map(NUMERIC.index, difference.destinations)), difference.kind


def cells(difference: Difference, system: System) -> list[str]:
    assert difference.example is not None
    src, dst, _, x, ours, theirs = difference.example
    return [
        difference.kind,
        names(difference.sources),
        names(difference.destinations),
        *([settings(difference, system)] if system.has_attributes else []),
        f"{src.name} {cases.show(x, src)} to {dst.name}",
        cases.show(ours, dst),
        cases.show(theirs, dst),
        f"{difference.cases:,} of {difference.tried:,}",
    ]


def settings(difference: Difference, system: System) -> str:
    """The attributes that a row applies to; "any" if it applies to all that were tried, or none has an effect."""
    casts = ((src, dst) for src in difference.sources for dst in difference.destinations)
    tried = {setting for src, dst in casts for setting in system.settings(src, dst)}
    if len(tried) == 1 or set(difference.settings) >= tried:
        return "any"
    if difference.destinations[0].family == "e8m0":
        modes = [setting.round_mode for setting in difference.settings]
        return f"saturate={difference.settings[0].saturate:d}, " + ("any mode" if len(modes) == 3 else ", ".join(modes))
    return ", ".join("saturate=1" if setting == Setting() else str(setting) for setting in difference.settings)


def refused(found: Comparison) -> Iterator[str]:
    """The types that the system lacks, then the other pairs that it refuses."""
    absent = [row for row in NUMERIC if len(found.refused.get(row, ())) == len(NUMERIC)]
    if absent:
        yield f"- from or to {names(absent)}"
    sources: dict[str, list[DType]] = {}
    for src, destinations in found.refused.items():
        rest = [dst for dst in destinations if dst not in absent]
        if src not in absent and rest:
            sources.setdefault(names(rest, len(NUMERIC)), []).append(src)
    for destinations_text, rows in sources.items():
        yield f"- {names(rows, len(NUMERIC))} to {destinations_text}"


def node_section(system: System) -> Iterator[str]:
    name = system.title.split()[-1]
    yield "Nodes out of the ordinary; the column gpucast is what its operators give in the onnx reference evaluator:"
    yield ""
    ours = GpucastOperators()
    nodes = [(node, cases.node_result(ours, node), cases.node_result(system, node)) for node in cases.NODES]
    yield from table(
        ["Node", "Example", "gpucast", name],
        [[node.what, f"FLOAT `{node.value}` to {node.dst}", one, other] for node, one, other in nodes if one != other],
    )
    yield "Text:"
    yield ""
    rows = []
    for src, value, dst in cases.TEXTS:
        one = cases.cast_result(cases.ROWS[src], value, cases.ROWS[dst], {})
        other = cases.system_result(system, cases.ROWS[src], value, cases.ROWS[dst])
        if one != other:
            rows.append([f"{src} to {dst}", f"`{value!r}`" if src == "STRING" else f"`{value}`", one, other])
    yield from table(["Cast", "Input", "gpucast", name], rows)


# ---- ONNX's pages ----


def onnx_section() -> Iterator[str]:
    yield "## ONNX's own pages"
    yield ""
    yield "gpucast follows the operator text of the requested opset, then the shipped node tests, then its own rules."
    yield "The technical pages on the narrow types (onnx.ai, Technical Details) say otherwise in these places:"
    yield ""
    rows = []
    for page, value, dst, says, why in cases.PAGES:
        ours = cases.cast_result(cases.ROWS["FLOAT"], value, cases.ROWS[dst], {})
        rows.append([page, f"FLOAT {shown('FLOAT', value)} to {dst}", says, ours, why])
    yield from table(["Page", "Example", "The page", "gpucast", "Why"], rows)
    yield "The operator text leaves these undefined or open:"
    yield ""
    rows = []
    for what, rule, src, value, dst, keywords in cases.OPEN:
        ours = cases.cast_result(cases.ROWS[src], value, cases.ROWS[dst], keywords)
        rows.append([what, rule, f"{src} {shown(src, value)} to {dst}", ours])
    yield from table(["What", "gpucast", "Example", "Result"], rows)


def shown(src: str, value: object) -> str:
    return cases.show(cases.array(cases.ROWS[src], value), cases.ROWS[src])


# ---- the page ----


def sections(systems: Iterable[str]) -> Iterator[str]:
    yield "\n".join(onnx_section())
    for name in systems:
        system = SYSTEMS[name]()
        lines = [*system_section(compare(system))]
        if system.has_attributes:
            lines += node_section(system)
        yield "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    return write_or_check(Page(PAGE, INTRO, [*SYSTEMS], sections), arguments)


if __name__ == "__main__":
    sys.exit(main())
