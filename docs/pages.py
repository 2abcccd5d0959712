# SPDX-License-Identifier: Apache-2.0
"""Write what the pages have from the code and from committed results: ``python docs/pages.py [--check]``.

A part of a page stands between two marks, and names the function that gives it, with its arguments::

    <!-- written by docs/pages.py: values FLOAT4E2M1 -->
    <!-- end -->

The scoreboard, the ledger and three pictures are written whole.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(path) for path in (HERE, ROOT, ROOT / "tests" / "conformance", ROOT / "tests")]

import beside  # noqa: E402
import command_line  # noqa: E402
import docstrings  # noqa: E402
import ledger  # noqa: E402
import quantization_tables  # noqa: E402
import results  # noqa: E402
import tables  # noqa: E402

import conformance  # noqa: E402

#: What a page can ask for.
FUNCTIONS: dict[str, Callable[..., str]] = (
    tables.TABLES
    | quantization_tables.TABLES
    | results.TEXTS
    | {
        "api": docstrings.api,
        "docstring": docstrings.of_module,
        "commands": command_line.commands,
        "others": conformance.readme,
    }
)
PART = re.compile(
    r"^<!-- written by docs/pages\.py:((?: [^\s>]+)+) -->\n(?:.*?\n)??<!-- end -->$", re.MULTILINE | re.DOTALL
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python docs/pages.py", description="Write what the code gives for the pages."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and name the pages that would change"
    )
    check = parser.parse_args().check
    outdated = {path: text for path, text in rendered().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in outdated.items():
        print(path.relative_to(ROOT), file=sys.stderr)
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(outdated))


def rendered() -> dict[Path, str]:
    """Every file that has something of the code, as it should be."""
    found = {
        page: with_parts(page.read_text("utf-8"), page) for page in (ROOT / "README.md", *sorted(HERE.glob("*.md")))
    }
    return found | {
        conformance.PAGE: conformance.page(),
        ledger.PAGE: ledger.page(),
        conformance.PICTURE: conformance.picture(conformance.systems()),
        results.HOST_PICTURE: results.host_picture(),
        beside.PICTURE: beside.picture(),
    }


def with_parts(text: str, page: Path) -> str:
    """A page with each part written anew."""

    def part(match: re.Match[str]) -> str:
        name, *words = match[1].split()
        if name not in FUNCTIONS:
            raise SystemExit(f"{page.name}: {name!r} is not known; expected one of {', '.join(FUNCTIONS)}")
        head = match[0].partition("\n")[0]
        return f"{head}\n\n{made(name, *words).strip()}\n\n<!-- end -->"

    return PART.sub(part, text)


@cache
def made(name: str, *words: str) -> str:
    return FUNCTIONS[name](*words)


if __name__ == "__main__":
    sys.exit(main())
