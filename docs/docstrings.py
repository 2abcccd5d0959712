# SPDX-License-Identifier: Apache-2.0
"""Docstrings as Markdown: the page of the API, and the texts of modules in other pages."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The public names, by the section of the page that has them. "gpucast." is left out.
API: dict[str, tuple[str, ...]] = {
    "Casts": ("cast", "cast_like", "cast_many", "cast_report", "CastReport", "ufunc", "DEFAULT_OPSET"),
    "Types": ("dtype", "DTYPES", "DType", "finfo", "iinfo"),
    "Arrays": ("PackedArray", "empty", "empty_like", "from_bytes", "from_dlpack", "to_dlpack"),
    "Files": ("save", "load"),
    "Quantization": (
        "quantize", "dequantize", "hadamard", "quantize_grouped", "cast_grouped", "Quantized", "quantization",
    ),
    "Mixed precision": ("mixed",),
    "Layers": ("layers",),
    "Devices": ("warmup", "device_functions", "device_function", "DeviceUnavailable"),
    "The specification": ("reference",),
}  # fmt: skip
#: What the page shows of modules.
MEMBERS = {
    "quantization": ("Format", "Steps", "Recipe", "Grouped", "repack", "FORMATS", "RECIPES"),
    "reference": ("cast",),
    "dtypes": (),
}
#: Modules that need a library which may be missing: their text is read, and nothing is imported.
INTEROP = {
    "interop.torch": "libraries/torch",
    "interop.jax": "libraries/jax",
    "interop.numba": "user_kernels/numba",
    "interop.triton": "user_kernels/triton",
    "interop.onnx": "onnx/backend",
    "interop.ort": "onnx/ort",
    "interop.dask": "libraries/dask",
    "interop.mdf": "onnx/mdf",
}
#: Names without an underscore that only other modules of the package use.
INTERNAL = (
    "LIBRARY", "BackendRep", "DaskLibrary", "JaxLibrary", "gradient", "native", "owned", "plain", "shown", "take",
    "workspace",
)  # fmt: skip
#: What Python keeps no docstring of.
VALUES = {
    "DEFAULT_OPSET": "The opset whose rules a cast follows if it is called without `opset`: the newest that"
    " this version knows. It\ndoes not change within a major version of gpucast, so that an upgrade changes no bits.",
    "DTYPES": "The 27 types (a tuple of `DType`), in the order in which Cast came to support them.",
    "quantization.FORMATS": "All formats: a dict of `Format` by name.",
    "quantization.RECIPES": "All recipes: a dict of `Recipe` by name. `gpucast recipes` prints them.",
}


def anchor(name: str) -> str:
    """The end of the address of a heading, as GitHub and the site make it."""
    # Two headings that differ in their capitals alone: the second gets a number.
    number = "-1" if name == "gpucast.DType" else ""
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") + number


def api() -> str:
    """The page: a section for each group of names, after links to all."""
    sections = {title: [*_names(title)] for title in API}
    lines = [
        f"- [{title}](#{anchor(title)}): " + ", ".join(f"[`{name}`](#{anchor('gpucast.' + name)})" for name in names)
        for title, names in sections.items()
    ]
    lines.append(f"- [With other libraries](#{anchor('With other libraries')})")
    parts = ["\n".join(lines)]
    for title, names in sections.items():
        parts.append(f"## {title}")
        modules = [found for name in API[title] if inspect.ismodule(found := _find(name))]
        parts += (markdown(inspect.getdoc(module) or "") for module in modules)
        parts += (f"### gpucast.{name}\n\n{described(name)}" for name in names)
    parts.append("## With other libraries")
    parts += (f"### gpucast.{name}\n\n{_with_functions(name, path)}" for name, path in INTEROP.items())
    return "\n\n".join(parts)


def _names(title: str) -> Iterator[str]:
    for name in API[title]:
        if not inspect.ismodule(found := _find(name)):
            yield name
            continue
        for member in MEMBERS.get(name, found.__all__):
            yield f"{name}.{member}"


def _find(name: str) -> Any:
    """Something public by its name; modules are imported with the first use."""
    found: Any = importlib.import_module("gpucast")
    for part in name.split("."):
        found = getattr(found, part)
    return found


def described(name: str) -> str:
    """One name: how it is called, its text, and the members of a class."""
    found = _find(name)
    if name in VALUES:
        return VALUES[name]
    if inspect.ismodule(found) or not (callable(found) and hasattr(found, "__name__")):
        # An object, such as `gpucast.dtype`: the text of its class says how it is called.
        cls = type(found)
        return "\n\n".join([markdown(inspect.getdoc(found) or ""), *_members(cls)])
    title = name.rpartition(".")[2]
    if not inspect.isclass(found):
        return "\n\n".join([call(title, found), markdown(inspect.getdoc(found) or "")])
    first = [] if issubclass(found, BaseException) else [call(title, found)]
    return "\n\n".join([*first, markdown(inspect.getdoc(found) or ""), *_members(found)])


def call(title: str, found: Any) -> str:
    """How something is called, as a block of code without annotations."""
    signature = inspect.signature(found)
    plain = [one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"]
    text = f"{title}{signature.replace(parameters=plain, return_annotation=signature.empty)}"
    text = re.sub(r"<factory>|<object object at \w+>|<class '([\w.]+)'>", lambda one: one[1] or "...", text)
    if len(text) > 88:
        text = textwrap.fill(text, 88, subsequent_indent=" " * (len(title) + 1), break_long_words=False)
    return f"```text\n{text}\n```"


def _members(cls: type) -> Iterator[str]:
    """The public attributes and methods of a class that have a text, as paragraphs; a link for a public base."""
    bases = [base for base in cls.__mro__[1:] if base.__name__ in _public_classes()]
    shown = [base for base in cls.__mro__ if base is not object and base not in bases]
    attributes = {name: text for base in reversed(shown) for name, text in _comments(base.__name__).items()}
    if attributes:
        yield "\n".join(f"- `{name}`: {markdown(text)}" for name, text in attributes.items())
    for name in dict.fromkeys(name for base in shown for name in vars(base)):
        home = next(base for base in shown if name in vars(base))
        if name.startswith("_") or name in INTERNAL or not home.__module__.startswith("gpucast") or name in attributes:
            continue
        raw = vars(home)[name]
        member = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        text = inspect.getdoc(member)
        if not text or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        head = name if isinstance(member, property) else _plain_call(name, member)
        yield f"**`{head}`**: {markdown(text)}"
    for base in bases:
        name = _public_classes()[base.__name__]
        yield f"All else is as in [`{name}`](#{anchor('gpucast.' + name)})."


@cache
def _public_classes() -> dict[str, str]:
    """The public names of classes, by their own."""
    names = [name for title in API for name in _names(title)]
    return {_find(name).__name__: name for name in names if inspect.isclass(_find(name))}


def _plain_call(name: str, member: Any) -> str:
    block = call(name, member).splitlines()[1:-1]
    text = " ".join(line.strip() for line in block)
    return re.sub(r"\((?:self|cls)(?:, )?", "(", text)


@cache
def _comments(name: str) -> dict[str, str]:
    """The comments ``#:`` before the attributes of a class, whose module may not be the one that it names."""
    start = re.compile(rf"^class {name}\b.*\n((?:    .*\n|\n)+)", re.MULTILINE)
    found = [match[1] for path in sorted((ROOT / "gpucast").rglob("*.py")) for match in start.finditer(_text(path))]
    if len(found) != 1:
        return {}
    comments = re.findall(r"((?:^ {4}#: ?.*\n)+) {4}([a-z]\w*)\s*[:=]", found[0], re.MULTILINE)
    return {name: " ".join(line.strip()[2:].strip() for line in text.splitlines()) for text, name in comments}


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def of_module(path: str) -> str:
    """The docstring of a module or package, by its path without an ending: read, not imported."""
    return markdown(ast.get_docstring(_tree(path)) or "")


@cache
def _tree(path: str) -> ast.Module:
    folder = ROOT / path
    return ast.parse(_text(folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")))


def _with_functions(name: str, path: str) -> str:
    """The text of a module, and those of the functions and classes that its public name gives; nothing is imported."""
    folder = (ROOT / "gpucast" / path).parent
    public = _tree(f"gpucast/{name.replace('.', '/')}")
    imported = [one.module.replace(".", "/") for one in public.body if isinstance(one, ast.ImportFrom) and one.module]
    siblings = [f"gpucast/{folder.name}/{file.stem}" for file in sorted(folder.glob("*.py"))]
    places = [f"gpucast/{path}", *(place for place in imported if place.startswith("gpucast/")), *siblings]
    found = {
        one.name: one
        for place in reversed(places)
        for one in _tree(place).body
        if isinstance(one, (ast.FunctionDef, ast.ClassDef))
    }
    parts = [of_module(places[0])]
    for one in (found[given] for given in _given(name) if given in found and given not in INTERNAL):
        head = f"{one.name}({_arguments(one.args)})" if isinstance(one, ast.FunctionDef) else one.name
        if text := ast.get_docstring(one):
            parts.append(f"**`{head}`**: {markdown(text)}")
    return "\n\n".join(parts)


def _given(name: str) -> list[str]:
    """The list ``__all__`` of a public module."""
    tree = _tree(f"gpucast/{name.replace('.', '/')}")
    values = [
        one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    ]
    return [text for value in values for text in ast.literal_eval(value)]


def _arguments(found: ast.arguments) -> str:
    for one in (*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg):
        if one is not None:
            one.annotation = None
    return ast.unparse(found)


# ---- what docstrings have in other forms than Markdown ----


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    lines = _sections(text.splitlines())
    return _inline("\n".join(_literals(lines)).strip())


def _sections(lines: list[str]) -> list[str]:
    """Parameters, Returns and the like as bold words, and what stands below each name as items of a list."""
    found: list[str] = []
    at, within = 0, False
    while at < len(lines):
        line, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", below) and line:
            found += [f"**{line}**", ""]
            within, at = True, at + 2
            continue
        if within and line and not line[0].isspace() and below.startswith("    "):
            block = []
            at += 1
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at]):
                block.append(lines[at][4:])
                at += 1
            text = "\n".join(block).rstrip()
            names = ", ".join(f"`{name.strip()}`" for name in line.split(","))
            found += [f"- {names}: " + text.replace("\n", "\n  "), *([""] if not block[-1] else [])]
            continue
        found.append(line)
        at += 1
    return found


def _literals(lines: list[str]) -> list[str]:
    """Blocks behind a double colon as blocks of code."""
    found: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.rstrip().endswith("::"):
            found.append(line)
            continue
        found.append(line.rstrip()[:-1])
        block = []
        while at < len(lines) and (lines[at].startswith("    ") or not lines[at]):
            block.append(lines[at])
            at += 1
        found += ["", "```py", *textwrap.dedent("\n".join(block)).strip("\n").splitlines(), "```", ""]
    return found


def _inline(text: str) -> str:
    """Doubled backticks as single ones, outside of blocks of code; names of this page as links."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(parts), 2):
        # Behind a name in backticks Markdown takes letters as they are.
        parts[i] = re.sub(r"``(.+?)``", r"`\1`", parts[i], flags=re.DOTALL)
    return "".join(parts)
