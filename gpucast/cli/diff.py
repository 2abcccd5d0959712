# SPDX-License-Identifier: Apache-2.0
"""`gpucast diff A B`: compare two checkpoints by their numbers."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from gpucast.cli import arguments
from gpucast.cli.dtypes import columns, counted
from gpucast.cli.progress import progress_bar
from gpucast.convert.difference import side
from gpucast.convert.difference.numbers import Count, Difference, compared
from gpucast.convert.losses.counts import finite
from gpucast.core.errors import printable

_DESCRIPTION = """\
Compare the tensors of two files, indexes or folders by value. Each side may be
plain, or codes with scales in a style that `convert` reads. SQNR is the ratio
of A's numbers to the difference, in dB. The exit code is 0 if all numbers are
equal, and 1 if some differ."""

_OPTIONS = """\
--all  also list the tensors that are equal
--json  print a JSON object, which says more of each tensor
--no-progress  draw no progress bar
"""
#: Characters of a name that the table shows, so that it fits 100 columns.
_NAME = 34


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
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(side.opened(path)) for path in (args.a, args.b))
        shared = [name for name in a.tensors if name in b.tensors]
        total = sum(part.tensors[name].nbytes for part in (a, b) for name in shared)
        with progress_bar(total, not args.no_progress) as advance:
            rows = [compared(name, a.tensors[name], b.tensors[name], advance) for name in shared]
        missing = {
            path: sorted(part.tensors.keys() - other.tensors.keys() - other.problems.keys())
            for path, part, other in ((args.a, a, b), (args.b, b, a))
        }
        # What is so on both sides is said once.
        problems = [printable(text) for text in dict.fromkeys([*a.problems.values(), *b.problems.values()])]
    differ = sum(not found.is_equal for found in rows)
    if args.json:
        document = {"tensors": list(map(_object, rows)), "differ": differ, "only_in": missing, "problems": problems}
        print(json.dumps(document, indent=1))
    else:
        _print(rows, args.all)
        for path, names in missing.items():
            if names:
                print(f"only in {printable(path)}: {counted(len(names), 'tensor')}, such as {printable(names[0])!r}")
        for text in problems:
            print(f"not compared: {text}")
        known = [(ratio, found.name) for found in rows if (ratio := found.sqnr_db) is not None]
        worst = f"; SQNR {min(known)[0]:.1f} dB at worst, of {_short(printable(min(known)[1]), _NAME)}" if known else ""
        print(f"{differ:,} of {len(rows):,} tensors differ{worst}")
    return int(bool(differ or problems or any(missing.values())))


def _print(rows: list[Difference], everything: bool) -> None:
    lines = [["tensor", "A", "B", "differ", "codes", "largest", "SQNR dB"]]
    for found in rows:
        if found.is_equal and not everything:
            continue
        # Of codes their type; what their scales are like --json tells.
        kinds = [kind.partition(",")[0] for kind in found.kinds]
        cells = [found.problem, "", "", ""]
        if not found.problem:
            ratio = found.sqnr_db
            cells = [
                _share(found.values),
                _share(found.codes),
                f"{found.largest:.3g}",
                "" if ratio is None else f"{ratio:.1f}",
            ]
        lines.append([_short(printable(found.name), _NAME), *kinds, *cells])
    if len(lines) > 1:
        print(columns(lines))


def _short(text: str, most: int) -> str:
    """The text, or its end, which tells names of one layer apart."""
    return text if len(text) <= most else f"..{text[2 - most :]}"


def _share(count: Count | None) -> str:
    if count is None:
        return ""
    return f"{count.differ / count.of:.2%}" if count.differ else "0"


def _object(found: Difference) -> dict[str, Any]:
    counts = {name: getattr(found, name) for name in ("values", "codes", "scales")}
    return {
        "name": found.name,
        "kinds": found.kinds,
        "shape": found.shape,
        **{name: None if count is None else vars(count) for name, count in counts.items()},
        "relative_error": finite(found.relative_error),
        "sqnr_db": found.sqnr_db,
        "largest": finite(found.largest),
        "worst": [(row, finite(error)) for row, error in found.worst],
        "problem": found.problem,
    }
