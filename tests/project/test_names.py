# SPDX-License-Identifier: Apache-2.0
"""Pages, comments and docstrings name modules and files that there are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gpucast", "kernels", "docs", "bench", "examples", "tests")
ENDINGS = ("py", "md", "sh", "c", "h", "hpp", "cu", "cuh")
#: The log of changes names what there was, and tests of the project make names up.
OTHERS = (ROOT / "CHANGELOG.md", ROOT / "tests" / "project")

NAME = re.compile(r"(?<![\w./-])gpucast(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\.(?:{'|'.join(ENDINGS)})\b")
#: Keys in the metadata of safetensors files, which only look like names: "gpucast.dtype.weights".
KEY = re.compile(r"gpucast\.(?:dtype|shape|quantized)(?:\.\w+)?")


def texts() -> Iterator[Path]:
    yield from (ROOT / "Dockerfile", ROOT / ".ci" / "run")
    yield from (path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yaml"))
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix[1:] in ENDINGS)


TEXTS = [path for path in texts() if not any(path.is_relative_to(other) for other in OTHERS)]


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or from one through attributes to anything."""
    # To import these two would run the command, and set up the package anew.
    if KEY.fullmatch(name) or name in ("gpucast.__main__", "gpucast.__init__"):
        return True
    first, *parts = name.split(".")
    found, path = importlib.import_module(first), ROOT / first
    for count, part in enumerate(parts, 2):
        path /= part
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            try:
                found = importlib.import_module(".".join([first, *parts][:count]))
            except ImportError:  # It needs a library that is not installed: nothing more can be said.
                return True
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return False
    return True


def test_names_and_files_are_there() -> None:
    wrong = []
    for path in TEXTS:
        place, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        wrong += [f"{place}: {name}" for name in sorted(set(NAME.findall(text))) if not is_there(name)]
        wrong += [f"{place}: {file}" for file in sorted(set(FILE.findall(text))) if not (ROOT / file).exists()]
    assert not wrong, "\n".join(wrong)
