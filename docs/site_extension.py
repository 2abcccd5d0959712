# SPDX-License-Identifier: Apache-2.0
"""What the site has beyond the pages as they stand: its contents at the side, and files outside of this folder.

The pages are plain Markdown, which GitHub shows whole.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
#: The lists of pages in index.md: a heading, and below it links to pages.
SECTION = re.compile(r"^### (.+)\n((?:\n|- .*\n|  .*\n)+)", re.MULTILINE)
PAGE = re.compile(r"^- \*\*\[[^\]]*\]\((\w[\w-]*)\.md\)\*\*", re.MULTILINE)
#: A link to another file of the repository: the site hands it out.
FILE = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)\)")


def contents(text: str) -> str:
    """The tables of contents that the lists of the first page say."""
    parts = []
    for title, body in SECTION.findall(text):
        if pages := PAGE.findall(body):
            parts.append(
                "\n".join(["```{toctree}", f":caption: {title}", ":maxdepth: 1", ":hidden:", "", *pages, "```"])
            )
    return "\n\n".join(parts)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] += "\n" + contents(source[0]) + "\n"
    source[0] = FILE.sub(r"{download}`\1 <\2>`", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
