# SPDX-License-Identifier: Apache-2.0
"""The table of `python -m bench --static`, for the terminal and for the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.markdown import table

_COLUMNS = (
    "Call", "Registers", "Shared", "Threads", "In flight", "Instructions", "Barriers", "Launches", "Read", "Written",
    "Share",
)  # fmt: skip


def estimates(rows: Sequence[Mapping[str, Any]]) -> str:
    """Estimates for one architecture as Markdown, a row for each call."""
    return table(_COLUMNS, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[str]:
    spills = f" + {row['local']} local" if row["local"] else ""
    return [
        row["call"],
        f"{row['registers']}{spills}",
        _kib(row["shared"]) if row["shared"] else "-",
        str(row["threads"]),
        f"{row['in_flight'] / 1024:.0f} of {_kib(row['wanted'])}",
        f"{'' if row['exact'] else 'about '}{row['instructions']:.1f}",
        str(row["barriers"] or "-"),
        str(row["launches"]),
        f"{row['read']:.2f}",
        f"{row['written']:.2f}",
        f"{100 * row['share']:.0f} %, {row['bound']}",
    ]


def _kib(nbytes: int) -> str:
    return f"{nbytes / 1024:.0f} KiB"
