# SPDX-License-Identifier: Apache-2.0
"""`gpucast dtypes`: print the dtype table."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from gpucast.core.dtypes import DTYPES, DType, finfo

_HEADINGS = {
    "name": "ONNX",
    "number": "No.",
    "bits": "Bits",
    "layout": "s/e/m",
    "bias": "Bias",
    "min": "Lowest",
    "max": "Largest",
    "smallest": "Smallest > 0",
    "specials": "Specials",
    "opset": "Opset",
    "numpy": "NumPy, ml_dtypes",
    "safetensors": "safetensors",
}


def add(commands: Any) -> None:
    parser = commands.add_parser("dtypes", help="print the table of types", description="Print the 26 types of Cast.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a list of objects")
    form.add_argument("--markdown", action="store_true", help="a Markdown table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows = [describe(row) for row in DTYPES]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        cells = [[_text(row[key]) for key in _HEADINGS] for row in rows]
        print(markdown(cells) if args.markdown else plain(cells))
    return 0


def describe(row: DType) -> dict[str, Any]:
    """One row of the table by column; None where a column has no meaning for the type."""
    number = row.family in ("int", "float", "e8m0")
    layout = f"{row.sign_bits}/{row.exponent_bits}/{row.mantissa_bits}" if row.is_float else None
    return {
        "name": row.name,
        "number": row.number,
        "bits": row.bits or None,
        "layout": layout,
        "bias": row.bias if row.is_float else None,
        "min": row.min if number else None,
        "max": row.max if number else None,
        "smallest": finfo(row).smallest_subnormal if row.is_float else None,
        "specials": _specials(row),
        "opset": row.opset,
        "numpy": row.numpy_name,
        "safetensors": row.safetensors,
    }


def _specials(row: DType) -> str | None:
    found = [text for text, has in (("inf", row.has_inf), ("NaN", row.has_nan), ("-0", row.has_negative_zero)) if has]
    return ", ".join(found) or None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    mantissa, exponent = math.frexp(value)
    tiny_or_huge = not 1e-3 < abs(value) < 1e6
    return f"2^{exponent - 1}" if mantissa == 0.5 and tiny_or_huge else f"{value:.6g}"


def plain(cells: list[list[str]]) -> str:
    """Columns under their headings."""
    lines = [list(_HEADINGS.values()), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown(cells: list[list[str]]) -> str:
    """The same as a Markdown table."""
    lines = [list(_HEADINGS.values()), ["---"] * len(_HEADINGS), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
