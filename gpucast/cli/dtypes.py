# SPDX-License-Identifier: Apache-2.0
"""`gpucast dtypes` and `gpucast recipes`: print the tables of types and of other libraries' formats."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

from gpucast.core.dtypes import DTYPES, DType, finfo
from gpucast.quantization import RECIPES, Recipe

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

#: Two tables for a terminal of 100 columns: the names of the types, and their limits.
_TABLES = (
    ("name", "number", "bits", "layout", "opset", "numpy", "safetensors"),
    ("name", "bias", "min", "max", "smallest", "specials"),
)
_OF_RECIPES = ("recipe", "library", "element", "scale", "block")


def add(commands: Any) -> None:
    description = (
        f"Print the table of the {len(DTYPES)} types: numbers, names, limits and the opset that each entered at."
    )
    parser = commands.add_parser("dtypes", help="print the table of types", description=description)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.set_defaults(run=run)
    _add_recipes(commands)


def run(args: argparse.Namespace) -> int:
    rows = [describe(dtype) for dtype in DTYPES]
    if args.json:
        print(json.dumps(rows, indent=1))
    elif args.markdown:
        print(markdown(_lines(rows, _HEADINGS)))
    else:
        print("\n\n".join(columns(_lines(rows, keys)) for keys in _TABLES))
    return 0


def _lines(rows: Iterable[Mapping[str, Any]], keys: Iterable[str]) -> list[list[str]]:
    return [[_HEADINGS[key] for key in keys], *([_text(row[key]) for key in keys] for row in rows)]


def describe(dtype: DType) -> dict[str, Any]:
    """One row of the table, by column; None if a column has no meaning for the type."""
    number = dtype.family in ("int", "float", "e8m0")
    layout = f"{dtype.sign_bits}/{dtype.exponent_bits}/{dtype.mantissa_bits}" if dtype.is_float else None
    return {
        "name": dtype.name,
        "number": dtype.number,
        "bits": dtype.bits or None,
        "layout": layout,
        "bias": dtype.bias if dtype.is_float else None,
        "min": dtype.min if number else None,
        "max": dtype.max if number else None,
        "smallest": finfo(dtype).smallest_subnormal if dtype.is_float else None,
        "specials": _specials(dtype),
        "opset": dtype.opset,
        "numpy": dtype.numpy_name,
        "safetensors": dtype.safetensors,
    }


def _specials(dtype: DType) -> str | None:
    found = [
        text for text, has in (("inf", dtype.has_inf), ("NaN", dtype.has_nan), ("-0", dtype.has_negative_zero)) if has
    ]
    return ", ".join(found) or None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    mantissa, exponent = math.frexp(value)
    tiny_or_huge = not 1e-2 < abs(value) < 1e6
    return f"2^{exponent - 1}" if mantissa == 0.5 and tiny_or_huge else f"{value:.6g}"


def range_text(row: Mapping[str, Any]) -> str:
    """The finite range of a row of `describe`, such as "-448 to 448"; empty for BOOL and STRING."""
    return "" if row["min"] is None else f"{_text(row['min'])} to {_text(row['max'])}"


def columns(lines: list[list[str]], numbers: int = 0) -> str:
    """Lines of cells as aligned text, without columns that hold nothing below their heading; in the last columns,
    `numbers` of them, at the right."""
    shown = [any(cells[1:]) or len(lines) == 1 for cells in zip(*lines, strict=True)]
    lines = [list(compress(line, shown)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    signs = "<" * (len(widths) - numbers) + ">" * numbers
    row = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    return "\n".join(row.format(*line).rstrip() for line in lines)


def counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def markdown(lines: list[list[str]]) -> str:
    """The table as Markdown; the first line has its headings."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:]))


def _add_recipes(commands: Any) -> None:
    parser = commands.add_parser(
        "recipes",
        help="print the formats of other libraries",
        description="Print the recipes of gpucast.quantize: formats with the codes and scales of another library. "
        "In the formulas a is the largest magnitude of a block, A that of the array, s the scale, x an element, and u "
        "the number that the library calls the global scale. Each operation rounds to FLOAT; T(...) rounds to the type "
        "of the array, power(...) down to a power of two, and pick(c, p, q) is p unless c is 0. largest is the largest "
        "FLOAT, tiny the smallest normal number of the array's type. held: whether the recipe was compared with the "
        "library (package), its reference of kernels (reference), or its formula alone (formula).",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="print these alone, in full: part of a name or a library"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run_recipes)


def run_recipes(args: argparse.Namespace) -> int:
    rows = [describe_recipe(recipe) for recipe in RECIPES.values()]
    for name in args.names:
        if not any(_is_named(row, name) for row in rows):
            raise ValueError(f"no recipe has {name!r} in its name or library; libraries: {_libraries(rows)}")
    if args.names:
        rows = [row for row in rows if any(_is_named(row, name) for name in args.names)]
    if args.json:
        print(json.dumps(rows, indent=1))
    elif args.names:
        print("\n\n".join(_in_full(row) for row in rows))
    else:
        print(columns([list(_OF_RECIPES), *([row[key] for key in _OF_RECIPES] for row in rows)]))
        print("\n`gpucast recipes NAME` adds the version, the formulas, and how each was compared.")
    return 0


def _is_named(row: Mapping[str, Any], name: str) -> bool:
    return name.lower() in row["recipe"].lower() or name.lower() in row["library"].lower()


def _libraries(rows: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["library"] for row in rows))


def _in_full(row: Mapping[str, Any]) -> str:
    """One recipe, a line for each column."""
    texts = {key: ", ".join(value) if isinstance(value, list) else value for key, value in row.items()}
    return columns([[key, text] for key, text in texts.items() if text])


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """One row of the table."""
    format, steps = recipe.format, recipe.format.steps
    return {
        "recipe": recipe.name,
        "library": recipe.library,
        "version": recipe.version,
        "held": recipe.held,
        "element": format.element.name,
        "scale": format.scale.name,
        "block": format.block_text,
        "scales": format.rule if steps is None else steps.scale,
        "codes": "exact" if steps is None else steps.code,
        "global_scale": None if steps is None or not steps.u else steps.global_scale.replace("u", f"({steps.u})"),
        "sources": list(recipe.sources),
    }
