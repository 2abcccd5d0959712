# SPDX-License-Identifier: Apache-2.0
"""Who may import whom, and what `import gpucast` costs."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import gpucast

PACKAGE = Path(gpucast.__file__).parent

#: The modules of ours that a module may import. Numeric rooms share the rows and the rule, never each other.
ALLOWED = {
    "checks": set(),
    "dtypes": set(),
    "rule": {"checks", "dtypes"},
    "packed_codes": set(),
    "packed": {"arrays", "dtypes", "packed_codes"},
    "call": {"dtypes"},
    # No adapter, and nothing that knows a library.
    "arrays/adapters": {"call", "dtypes", "packed_codes"},
    "arrays/unowned": {"dtypes"},
    "strings": {"dtypes"},
    "random_bits": {"checks", "rule"},
    "reference": {"dtypes", "random_bits", "reference_floats", "rule", "strings"},
    "reference_floats": {"dtypes"},
    "errors": set(),
    "device": {"errors", "launch"},
    "source": {"dtypes", "rule"},
    "strides": {"source"},
}
#: Modules that must not see each other even through a third.
STRANGERS = [
    (one, other)
    for host in ("host", "host_stochastic", "host_strings")
    for one, other in (("reference", host), (host, "reference"))
]


def imports(module: str) -> set[str]:
    """The gpucast modules that a module imports, anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("gpucast.")}
    return found


def reached(module: str) -> set[str]:
    seen, todo = set(), [module]
    while todo:
        for name in imports(todo.pop()):
            if name not in seen and (PACKAGE / f"{name}.py").exists():
                seen.add(name)
                todo.append(name)
    return seen


@pytest.mark.parametrize("module", ALLOWED)
def test_imports_point_down(module: str) -> None:
    assert imports(module) <= ALLOWED[module]


@pytest.mark.parametrize(("one", "other"), STRANGERS)
def test_unlike_implementations_do_not_meet(one: str, other: str) -> None:
    assert other not in reached(one)


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_import_brings_no_optional_package() -> None:
    loaded = python("import gpucast, sys; print(' '.join(sys.modules))").split()
    heavy = {
        "gpucast.launch",
        "gpucast.compiler",
        "cupy",
        "gpucast.interop",
        "torch",
        "jax",
        "onnx",
        "pyarrow",
        "orjson",
        "fastnumbers",
        "tqdm",
        "argparse",
        "gpucast.cli",
        "subprocess",
    }
    assert "gpucast" in loaded
    assert heavy.isdisjoint(loaded)


def test_import_is_quick() -> None:
    """At most 40 ms more than NumPy and ml_dtypes is the goal; the gate is a ratio taken in one run."""
    timed = "import time; t = time.perf_counter(); import numpy, ml_dtypes; u = time.perf_counter(); import gpucast; "
    runs = [python(timed + "print(u - t, time.perf_counter() - u)").split() for _ in range(5)]
    base, ours = (statistics.median(float(run[i]) for run in runs) for i in (0, 1))
    print(f"import: numpy and ml_dtypes {base * 1e3:.0f} ms, gpucast {ours * 1e3:.0f} ms more", file=sys.stderr)
    assert ours < base * (2 if os.environ.get("CI") else 1)
