# SPDX-License-Identifier: Apache-2.0
"""The page of the demonstration (digits.py): its tables, bars for the accuracies, pictures of the documentation."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gpucast.convert.reporting.html_page import style

_PICTURES = Path(__file__).resolve().parents[1] / "docs" / "static"
_STYLE = """
body { max-width: 52rem; }
img { max-width: 100%; border-radius: .5rem; margin: .75rem 0; }
.bar { display: grid; grid-template-columns: 9rem 1fr 9.5rem; gap: .75rem; align-items: center; margin: .3rem 0; }
.bar i { display: block; height: 1.1rem; background: var(--old); border-radius: .2rem; }
.bar.scaled i { background: var(--new); }
.bar b { font-weight: 400; font-variant-numeric: tabular-nums; }
td, th, td:first-child, th:first-child { white-space: normal; text-align: left; }
td:first-child { min-width: 8rem; }
@media (max-width: 34rem) {
  .bar { grid-template-columns: 8.5rem 1fr 3rem; gap: .4rem; }
  .bar small { display: none; }
}
"""
Rows = Sequence[tuple[str, ...]]


def page(compared: Rows, heads: tuple[str, ...], plain: Rows, scaled: Rows, exact: str) -> str:
    parts = [
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>gpucast: the demonstration</title><style>{style()}{_STYLE}</style></head><body>",
        "<header><h1>gpucast: the number that should come out, in every type</h1>",
        f"<p>{escape(exact)}.</p></header>",
        "<h2>The same cast, by NumPy with ml_dtypes and by gpucast</h2>",
        table(("cast", "NumPy", "gpucast", "why"), compared),
        "<h2>Accuracy of a small network, by the type of its weights</h2>",
        "<section><p>Grey: a plain cast. Blue: 4 bits with a scale for each block of weights.</p></section>",
        *(bar(row, "") for row in plain),
        *(bar(row, " scaled") for row in scaled),
        "<h2>Why 4 bits fail without scales</h2>",
        "<section><p>The weights are small, and the narrow types have few numbers there:</p></section>",
        picture("number-lines.svg", "The values of narrow types from 0 to 8"),
        "<section><p>A scale for each block moves the numbers to where the weights are:</p></section>",
        picture("block.svg", "A block of 32 numbers with one scale"),
        "<h2>All figures</h2>",
        table(heads, [*plain, *scaled]),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def bar(row: tuple[str, ...], kind: str) -> str:
    name, size, accuracy, _ = map(escape, row)
    return (
        f'<div class="bar{kind}"><span>{name}</span><i style="width: {accuracy}"></i>'
        f"<b>{accuracy} <small>{size} bytes</small></b></div>"
    )


def table(heads: tuple[str, ...], rows: Rows) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    labels = ["", *(f' data-l="{escape(cell)}"' for cell in heads[1:])]
    body = "".join(
        "<tr>" + "".join(f"<td{label}>{escape(cell)}</td>" for label, cell in zip(labels, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def picture(name: str, what: str) -> str:
    """As an image in the page itself, so that the style of one does not reach the other."""
    data = base64.b64encode((_PICTURES / name).read_bytes()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(what)}">'
