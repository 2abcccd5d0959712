# SPDX-License-Identifier: Apache-2.0
"""The Sphinx extension of these pages.

- ``generated`` runs a function of `tables` or `results` and shows the Markdown that it gives::

      ```{generated} values FLOAT4E2M1
      ```

- ``moduletext`` shows the docstring of a module or package without importing it, or what it needs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
from pathlib import Path
from typing import Any, ClassVar

import quantization_tables
import results
import tables
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_HERE = Path(__file__).resolve().parent


def contents(caption: str, *pages: str) -> str:
    """A table of contents of those pages that there are. (A page that no table has fails the build.)"""
    there = [page for page in pages if (_HERE / f"{page}.md").exists()]
    return "\n".join(["```{toctree}", f":caption: {caption}", ":maxdepth: 1", ":hidden:", "", *there, "```"])


FUNCTIONS = tables.TABLES | quantization_tables.TABLES | results.TEXTS | {"contents": contents}


class Generated(SphinxDirective):
    required_arguments = 1
    optional_arguments = 30
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[Any]:
        name, *arguments = self.arguments
        if name not in FUNCTIONS:
            raise self.error(f"generated: {name!r} is not known; expected one of {', '.join(FUNCTIONS)}")
        return self.parse_text_to_nodes(FUNCTIONS[name](*arguments))


class ModuleText(SphinxDirective):
    required_arguments = 1
    #: The module whose text it is, where the first one only hands names on.
    optional_arguments = 1

    def run(self) -> list[Any]:
        name, *source = self.arguments
        folder = _HERE.parent.joinpath(*(source or [name])[0].split("."))
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        self.env.note_dependency(str(path))
        lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
        house_style(self.env.app, "module", name, None, None, lines)
        return self.parse_text_to_nodes("\n".join([f".. py:module:: {name}", "", *lines]))


def house_style(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Two things that Sphinx reads otherwise: letters right behind a name in backticks, and a colon in the first line
    of an attribute, before which napoleon expects a type."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # Joins the next line, and leaves no trace.
    lines[:] = [re.sub(r"((?<![`:])`[^`]+`)(?=\w)", r"\1\\ ", line) for line in lines]


def of_ours(app: Sphinx, env: object, node: Any, content: Any) -> Any:
    """A name of gpucast that has no place on these pages is text, if it is the name of something."""
    target = node.get("reftarget", "")
    return content if target.startswith("gpucast.") and _exists(target) else None


def _exists(name: str) -> bool:
    """Whether a dotted name leads to a module or to something in one."""
    try:
        pydoc.resolve(name)
    except pydoc.ErrorDuringImport as error:
        # A module that needs a library which is not there.
        return isinstance(error.value, ImportError)
    except ImportError:
        return False
    return True


def name_sources(*packages: str) -> None:
    """Give classes the modules that define them: there autodoc finds the comments on their attributes. (Their own
    ``__module__`` is the public one, which pickles name.)"""
    for package in map(importlib.import_module, packages):
        for member in map(package.__dict__.get, package.__all__):
            methods = vars(member).values() if inspect.isclass(member) else ()
            source = next((method.__module__ for method in methods if inspect.isfunction(method)), None)
            if source is not None:
                member.__module__ = source


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    name_sources("gpucast", "gpucast.dtypes", "gpucast.layers", "gpucast.mixed", "gpucast.quantization")
    app.add_directive("generated", Generated)
    app.add_directive("moduletext", ModuleText)
    app.connect("autodoc-process-docstring", house_style, priority=400)
    app.connect("missing-reference", of_ours)
    app.connect("config-inited", results.add_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
