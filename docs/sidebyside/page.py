# SPDX-License-Identifier: Apache-2.0
"""A page that a script writes by running systems side by side: how it is written, and how it is checked."""

from __future__ import annotations

import argparse
import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tables import markdown

from sidebyside.classify import VARIES

#: Begins the lines that name versions.
MEASURED = "Measured with "


@dataclass(frozen=True)
class Page:
    path: Path
    #: What stands above the sections.
    intro: str
    #: Names of the systems on the command line.
    systems: Sequence[str]
    #: The sections of some systems, each with its title in the first line.
    sections: Callable[[Iterable[str]], Iterator[str]]


def table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a table and what ends it."""
    return [markdown(head, rows), ""]


def lasting(section: str) -> list[str]:
    """The lines of a section that must not change: those but versions and results that vary."""
    varying = re.compile(rf"{MEASURED}|\| [^|]*{VARIES.strip()} \||.*  # .*{VARIES.strip()}$")
    return [line for line in section.strip().splitlines() if not varying.match(line)]


def check(page: Page, made: Iterable[str]) -> int:
    """Print what the page should say; 1 if that is anything."""
    there = {text.splitlines()[0]: text for text in page.path.read_text(encoding="utf-8").split("\n## ")}
    found: list[str] = []
    for section in made:
        title = section.splitlines()[0].removeprefix("## ")
        before, after = lasting("## " + there.get(title, "")), lasting(section)
        found += difflib.unified_diff(before, after, f"{page.path.name}: {title}", "now", lineterm="", n=0)
    script = f"docs/{page.path.stem}.py"
    print("\n".join([*found, f"{page.path.name} is {f'out of date: run {script}' if found else 'up to date'}"]))
    return int(bool(found))


def write_or_check(page: Page, arguments: list[str] | None = None) -> int:
    """Write the page, or check it, as the arguments of the command line say; the exit code."""
    parser = argparse.ArgumentParser(description=f"Write docs/{page.path.name}, or check it.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    parser.add_argument("--systems", nargs="+", choices=page.systems, help="check the sections of these systems only")
    options = parser.parse_args(arguments)
    if options.systems and not options.check:
        parser.error("--systems goes with --check; the page always has all systems")
    # The other systems warn about what is compared here.
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        made = page.sections(options.systems or page.systems)
        if options.check:
            return check(page, made)
        page.path.write_text("\n".join([page.intro, *made]).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {page.path}")
    return 0
