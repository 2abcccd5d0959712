# SPDX-License-Identifier: Apache-2.0
"""Only engines ask where an array is. ``python tests/test_engines.py`` lists who else does."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpucast
from gpucast.casting.engine import Engine
from gpucast.casting.host import HostEngine

PACKAGE = Path(gpucast.__file__).parent
#: The engines, and the rooms of devices, which are parts of them.
ENGINES = (
    "casting/engine.py", "casting/engines.py", "casting/host.py", "casting/cuda", "quantization/cuda", "mixed/cuda",
    "user_kernels/ufunc_cuda.py", "kernel/",
)  # fmt: skip
#: The most branches "host or device" elsewhere, in all and in the caster. They may become fewer.
MOST, MOST_OF_CASTER = 4, 3


def _called(node: ast.AST) -> str:
    """The last name of an expression, or of the function that it calls."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_host(node: ast.expr) -> bool:
    """Whether an expression stands for the host: None, "cpu", both in a tuple, or its engine."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_host, node.elts))
    return _called(node) == "HOST" or (isinstance(node, ast.Constant) and node.value in (None, "cpu"))


def _is_keyword(node: ast.expr) -> bool:
    """Whether an expression is a `device` keyword, of which None says no more than that it is not given."""
    return isinstance(node, ast.Attribute) and _called(node.value) == "options"


def branches() -> Iterator[tuple[str, int, str]]:
    """The comparisons of a place with the host outside of engines: file, line and text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(ENGINES):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asserted = {id(node) for one in ast.walk(tree) if isinstance(one, ast.Assert) for node in ast.walk(one)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Compare) or id(node) in asserted or not _is_host(node.comparators[0]):
                continue
            of_engine = _called(node.comparators[0]) == "HOST"
            if of_engine or (_called(node.left) in ("device", "place", "device_index") and not _is_keyword(node.left)):
                yield name, node.lineno, ast.unparse(node)


def test_few_but_engines_ask_where_an_array_is() -> None:
    found = list(branches())
    assert len(found) <= MOST, found
    of_caster = [one for one in found if one[0].startswith(("core/", "reference/", "arrays/", "host/", "casting/"))]
    assert len(of_caster) <= MOST_OF_CASTER, of_caster


def test_the_engine_of_devices_has_the_methods_of_the_host() -> None:
    """Of the same names and parameters, so that a caller need not know which it has."""
    cuda = pytest.importorskip("gpucast.casting.cuda").CudaEngine
    for name, method in inspect.getmembers(Engine, inspect.isfunction):
        wanted = list(inspect.signature(method).parameters)
        assert wanted == list(inspect.signature(getattr(HostEngine, name)).parameters), name
        assert wanted == list(inspect.signature(inspect.unwrap(getattr(cuda, name))).parameters), name


def test_one_file_compares_memory() -> None:
    """Each of its functions is there for a reason; the module has another one, for plans."""
    comparing = re.compile(r"np\.(may_share|shares)_memory|byte_bounds")
    found = {path.name for path in PACKAGE.rglob("*.py") if comparing.search(path.read_text(encoding="utf-8"))}
    assert found == {"overlap.py"}


if __name__ == "__main__":
    found = list(branches())
    print(*(f"{name}:{line}: {text}" for name, line, text in found), sep="\n")
    print(f"{len(found)} branches in {len({name for name, *_ in found})} files")
