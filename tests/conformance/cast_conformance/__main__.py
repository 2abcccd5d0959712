# SPDX-License-Identifier: Apache-2.0
"""``python -m cast_conformance torch``: compare a library's casts, and its block formats, with the tables.

The exit status is 0 where every cast follows a convention in full and every block format is as in its table, 1 where
one does not, 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cast_conformance import adapters, report
from cast_conformance.quantized import run_blocks
from cast_conformance.reader import TABLES, as_text
from cast_conformance.run import all_pairs, applies, one_case, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cast_conformance", description="Compare a library's casts.")
    parser.add_argument("system", help=f"{', '.join(adapters.names())}, or a file adapter.py")
    parser.add_argument("--pairs", nargs="+", metavar="SRC:DST", help="only these (default: all)")
    parser.add_argument("--formats", nargs="*", metavar="NAME", help="only these block formats (default: all)")
    parser.add_argument(
        "--modes", nargs="+", metavar="NAME", help="only these conventions of those it can be asked for"
    )
    parser.add_argument("--case", metavar="SRC:DST:CODE", help="cast one code, and show every convention's result")
    parser.add_argument("--every", action="store_true", help="print the pairs that are exact, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the result as JUnit's XML")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the result as a page")
    options = parser.parse_args(arguments)
    if not TABLES.is_dir():
        parser.error(f"there are no tables in {TABLES}: python -m cast_conformance.generate makes them")
    try:
        adapter = adapters.load(options.system)
    except (ImportError, OSError) as error:
        print(f"{options.system}: {error}", file=sys.stderr)
        return 2
    modes = options.modes or getattr(adapter, "MODES", ("",))
    if options.case:
        dst = options.case.split(":")[1]
        print("\n".join(one_case(adapter, options.case, next(mode for mode in modes if applies(mode, dst)))))
        return 0
    system = Path(options.system).stem
    pairs = [tuple(pair.split(":")) for pair in options.pairs] if options.pairs else all_pairs()
    results = run(adapter, system, modes, pairs) if hasattr(adapter, "cast") else []
    names = getattr(adapter, "BLOCKS", ()) if options.formats is None else options.formats
    blocks = run_blocks(adapter, [] if options.pairs else list(names))
    for result in results:
        print("\n".join(report.text(result, options.every)))
    if blocks:
        print("\n".join(report.block_text(f"{system}: {adapter.version()}", blocks)))
    if options.json:
        content = report.as_json(system, results, adapter)
        content |= {"blocks": {"formats": blocks}} if blocks else {}
        options.json.write_text(as_text(content, 4) + "\n", encoding="utf-8")
    if options.junit:
        options.junit.write_text(report.junit(results), encoding="utf-8")
    if options.html:
        options.html.write_text(report.html(results), encoding="utf-8")
    if not blocks and not any(result.pairs for result in results):
        return 2
    return int(any(result.wrong for result in results) or any(map(report.differs, blocks.values())))


if __name__ == "__main__":
    sys.exit(main())
