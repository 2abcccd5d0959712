# SPDX-License-Identifier: Apache-2.0
"""`gpucast recipes`: print the formats of other libraries that gpucast has bit for bit."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpucast.cli.dtypes import columns
from gpucast.quantization import RECIPES, Recipe

_HEADINGS = ("recipe", "library", "version", "held", "element", "scale", "block", "scales", "codes")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "recipes",
        help="print the formats of other libraries",
        description="Print the recipes of gpucast.quantize: formats with the codes and scales of another library. "
        "In a formula, a is a block's largest magnitude, A the array's, s the scale, x an element; each operation "
        "rounds to FLOAT, and T(...) rounds to the type of the array.",
    )
    parser.add_argument("--json", action="store_true", help="a list of objects")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows = [describe(recipe) for recipe in RECIPES.values()]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print(columns([list(_HEADINGS), *([row[key] for key in _HEADINGS] for row in rows)]))
    return 0


def describe(recipe: Recipe) -> dict[str, Any]:
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
