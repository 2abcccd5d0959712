# SPDX-License-Identifier: Apache-2.0
"""Sphinx: ``sphinx-build -W docs build/site`` builds these pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "gpucast"
author = "the gpucast authors"
project_copyright = author
NUMBER = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
version = release = NUMBER.findall((HERE.parent / "gpucast" / "core" / "version.py").read_text("utf-8"))[0]

extensions = ["myst_parser", "site_extension"]
# Headings have the addresses that GitHub gives them.
myst_heading_anchors = 3

# Quotation marks are those of code.
smartquotes = False

html_theme = "furo"
html_title = f"gpucast {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
