# SPDX-License-Identifier: Apache-2.0
"""`gpucast diff A B`: compare two checkpoints by their numbers."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.dtypes import columns
from gpucast.cli.progress import progress_bar
from gpucast.convert.difference import side
from gpucast.convert.difference.explain import Explanation, Original, explanations
from gpucast.convert.difference.numbers import Count, Difference, compared
from gpucast.convert.reporting import html_page
from gpucast.convert.scales.dequantized import Dequantized
from gpucast.core.errors import printable
from gpucast.files.atomic import within

_DESCRIPTION = """\
Compare the tensors of two files, indexes or folders by value. Each side may be
plain, or codes with scales in a style that `convert` reads. If one side is not
quantized, or with --original, the command also finds the recipe (`gpucast
recipes`) of the quantized side: it tries all recipes on some rows. The exit
code is 0 if all numbers are equal, and 1 if some differ."""

_OPTIONS = """\
--original C  the checkpoint that A and B were made from; finds the recipe of both
--all  also list the tensors that are equal
--html FILE  also write a page of tensors and channels, the worst first
--json  print a JSON object
--no-progress  draw no progress bar
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "diff",
        help="compare two checkpoints by their numbers",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="a file, an *.index.json or a folder")
    parser.add_argument("b", metavar="B", help="another one, to compare with A")
    arguments.add_options(parser, _OPTIONS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for path in filter(None, (args.a, args.b, args.original)):
        if args.html is not None and os.path.lexists(args.html) and within(path, args.html):
            raise ValueError(f"--html {args.html}: is read by the comparison; choose another name")
    with contextlib.ExitStack() as stack:
        # First, so that a path that cannot be written stops the work before it begins.
        file = stack.enter_context(arguments.created(args.html))
        a, b = (stack.enter_context(side.opened(path)) for path in (args.a, args.b))
        origin = stack.enter_context(side.opened(args.original)) if args.original else None
        shared = [name for name in a.tensors if name in b.tensors]
        total = sum(part.tensors[name].nbytes for part in (a, b) for name in shared)
        rows = []
        with progress_bar(total, not args.no_progress) as advance:
            for name in shared:
                one, other = a.tensors[name], b.tensors[name]
                found = compared(name, one, other, advance)
                first = origin.tensors.get(name) if origin is not None else None
                known = None if first is None else Original(first)
                of_a, of_b = explanations(one, known or Original(other)), explanations(other, known or Original(one))
                rows.append((found, of_a, of_b))
        missing = {
            path: sorted(part.tensors.keys() - other.tensors.keys())
            for path, part, other in ((args.a, a, b), (args.b, b, a))
        }
        problems = [printable(text) for part in (a, b) for text in part.problems.values()]
        differ = sum(not found.is_equal for found, _, _ in rows)
        document = {
            "tensors": [_object(*row) for row in rows], "differ": differ, "only_in": missing, "problems": problems,
        }  # fmt: skip
        if file is not None:
            file.write(_page(args, rows, document).encode())
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        _print(rows, args.all)
        for path, names in missing.items():
            if names:
                print(f"only in {printable(path)}: {len(names):,} tensors, such as {printable(names[0])!r}")
        for text in problems:
            print(f"not compared: {text}")
        if not args.original and any(
            all(isinstance(part.tensors[name], Dequantized) for part in (a, b)) for name in shared
        ):
            print("both sides are quantized: --original C, which they were made from, finds their recipes")
        print(f"{differ:,} of {len(rows):,} tensors differ")
    return int(bool(differ or problems or any(missing.values())))


_Row = tuple[Difference, list[Explanation], list[Explanation]]


def _print(rows: list[_Row], everything: bool) -> None:
    lines = [["tensor", "A", "B", "numbers differ", "codes", "scales", "ULPs", "relative error", "worst row", "recipe"]]
    for found, of_a, of_b in rows:
        if found.is_equal and not everything and not (of_a or of_b):
            continue
        worst = f"{found.worst[0][0]}: {found.worst[0][1]:.2g}" if found.worst else ""
        ulps = next((str(c.ulps) for c in (found.codes, found.values) if c is not None and c.ulps is not None), "")
        lines.append([
            printable(found.name), *found.kinds, found.problem or _share(found.values), _share(found.codes),
            _share(found.scales), ulps, f"{found.relative_error:.3g}" if not found.problem else "", worst,
            "; ".join(f"{which}: {_best(one)}" for which, one in (("A", of_a), ("B", of_b)) if one),
        ])  # fmt: skip
    if len(lines) > 1:
        print(columns(lines))


def _share(count: Count | None) -> str:
    if count is None:
        return ""
    return f"{count.differ:,} ({count.differ / count.of:.2%})" if count.differ else "0"


def _best(found: list[Explanation]) -> str:
    exact = [one.recipe for one in found if one.is_exact]
    if exact:
        return " or ".join(exact)
    return f"nearest {found[0].recipe} ({found[0].codes:,} of {found[0].of:,} codes, {found[0].scales:,} scales)"


def _page(args: argparse.Namespace, rows: list[_Row], document: dict[str, Any]) -> str:
    worst = sorted(rows, key=lambda row: (not row[0].problem, -row[0].relative_error, -row[0].values.differ))
    data = {
        "a": args.a, "b": args.b, "original": args.original, "compared": len(rows), **html_page.made(), **document,
        "tensors": [_object(*row) for row in worst[: html_page.MOST]],
    }  # fmt: skip
    return html_page.page("Difference of two checkpoints", "difference.js", data)


def _object(found: Difference, of_a: list[Explanation], of_b: list[Explanation]) -> dict[str, Any]:
    counts = {name: getattr(found, name) for name in ("values", "codes", "scales")}
    return {
        "name": found.name,
        "kinds": found.kinds,
        "shape": found.shape,
        **{name: None if count is None else vars(count) for name, count in counts.items()},
        # JSON has no infinity.
        "relative_error": found.relative_error if math.isfinite(found.relative_error) else None,
        "worst": [(row, error if math.isfinite(error) else None) for row, error in found.worst],
        "problem": found.problem,
        "recipes": {which: [vars(one) for one in some] for which, some in (("a", of_a), ("b", of_b))},
    }
