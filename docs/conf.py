# SPDX-License-Identifier: Apache-2.0
"""Sphinx: ``sphinx-build -W docs build/site`` builds these pages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import gpucast  # noqa: E402

project = "gpucast"
author = "the gpucast authors"
project_copyright = author
version = release = gpucast.__version__

extensions = ["directives", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_argparse_cli"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"gpucast {release}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False

# Docstrings are written for readers of the code: a name in single backticks is a link where there is such a thing.
default_role = "py:obj"
napoleon_google_docstring = False
# What is said of two parameters at once stands there once.
napoleon_use_param = False
# Both hold text in the docstrings here, beside what NumPy's style has in them.
napoleon_custom_sections = ["Returns", "Raises"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = [
    name
    for name in ("dask", "distributed", "modeci_mdf", "onnx", "onnxruntime")
    if importlib.util.find_spec(name) is None
]
nitpicky = True
# Names of other libraries, and of parameters, are text: names in gpucast must be there.
nitpick_ignore_regex = [("py:.*", r"(?!gpucast\.).*")]
