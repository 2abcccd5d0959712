# SPDX-License-Identifier: Apache-2.0
"""Writes tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or "" without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines]) if lines else ""


def pivot(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """A table of (row, column, text), in the order in which they first appear."""
    found = {(row, column): text for row, column, text in cells}
    rows, columns = (list(dict.fromkeys(key[side] for key in found)) for side in (0, 1))
    return table([corner, *columns], ([row, *(found.get((row, column), "-") for column in columns)] for row in rows))
